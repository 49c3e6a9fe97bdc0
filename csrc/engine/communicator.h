// A group of ranks and everything one can ask of it. Checks, chooses and caches what runs, runs it in the
// caller's thread or hands it to the progress thread, and remembers how the group failed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cpu/executor.h"
#include "engine/diagnosis.h"
#include "engine/gpu/collectives.h"
#include "engine/messages/point_to_point.h"
#include "engine/planning/links.h"
#include "engine/planning/plan.h"
#include "engine/undestroyed.h"
#include "engine/work.h"
#include "transport/interface/transport.h"

namespace ringreduce {

struct Options {
  Clock::duration timeout = std::chrono::seconds(300);
  // An element of a reduction's result depends only on the ranks' values of that element: they are added in
  // rank order, whatever the buffer's size, the element's place, the transport. All ranks must agree.
  bool reproducible = reproducible_by_environment();
  // Called a few thousand times a second in threads that wait in a blocking collective, instead of the check
  // for interrupts: keeps something else of theirs going meanwhile. Must not throw.
  void (*poll)() = nullptr;
};

class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, Options options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const char* transport_name() const { return transport_name_; }
  bool oversubscribed() const { return transport_->oversubscribed(); }
  std::size_t footprint() const;
  const Options& options() const { return options_; }

  // Runs a collective in this thread (or, if asynchronous calls are under way, behind them).
  void run(const Call& call);
  void run(Steps& steps);
  // Hands it to the progress thread. Buffers must stay as they are until the work is done.
  std::shared_ptr<Work> submit(const Call& call);
  std::shared_ptr<Work> submit(std::unique_ptr<Steps> steps);

  // Collectives of arrays in a GPU's memory, all of one GPU: launched on a stream of that device, and gone on
  // with. The first one meets the other ranks, and waits for them. What fails later is thrown by later calls.
  // Without a stream, on one of this communicator's own.
  void enqueue(const Call& call, std::optional<void*> stream) { gpu_.enqueue(call, stream); }
  // The same on this communicator's own stream, behind what `stream` has to do now.
  std::shared_ptr<GpuWork> enqueue_beside(const Call& call, std::optional<void*> stream) {
    return gpu_.enqueue_beside(call, stream);
  }
  // Meets the other ranks for that, if it is to be done before the first of those calls; a collective.
  void prepare_device(int device) { gpu_.prepare(device); }
  // Memory of a GPU that NCCL may use in place: known by its first byte until it is deregistered or the
  // communicator is left. Whoever is the first to have to do with NCCL meets the other ranks.
  void register_memory(int device, void* memory, std::size_t bytes) {
    gpu_.register_memory(device, memory, bytes);
  }
  void deregister_memory(int device, void* memory) { gpu_.deregister_memory(device, memory); }
  // That stream, and bytes of the GPU's memory held; null and 0 where nothing was prepared.
  void* device_stream() { return gpu_.own_stream(); }
  std::size_t device_footprint() { return gpu_.footprint(); }

  // Sends and receives at the same time; returns when what is received is there.
  void swap(const Transfer& send, const Transfer& receive);
  // Point to point: a receive takes the oldest message of its tag, from its peer or from any (any_source).
  // Returns the other end's rank.
  int transfer(const Transfer& transfer);
  std::shared_ptr<Work> submit(const Transfer& transfer);

  // Adds a schedule written elsewhere; returns its handle for Call::algorithm. `heaviest_round` is the most
  // chunks that any rank sends in one round of it. `in_rank_order`: keeps_rank_order() of all ranks'
  // schedules.
  int add_schedule(const std::string& name, Schedule schedule, int heaviest_round,
                   bool in_rank_order = false);
  Choice explain(Collective collective, std::size_t bytes, Encoding wire = Encoding::none) const {
    return planner_.choose(collective, bytes, wire);
  }

  // Measures the links between hosts, or where all ranks share one those between ranks, and makes use of what
  // it finds from now on. A collective.
  Links measure_links();
  // The same for ranks on several hosts, unless RINGREDUCE_LINKS is off: for those who have just met. Of more
  // than 16 hosts it measures some links only.
  void measure_links_if_far();
  // What is known of them.
  const Links& links() const { return links_; }
  // The order in which rings visit the ranks; empty: by number.
  const std::vector<int>& ring_order() const { return planner_.order(); }

  // Ranks of equal color form a new communicator, ordered by key, then rank. Negative: none (null is
  // returned).
  std::unique_ptr<Communicator> split(int color, int key);
  // A communicator of the ranks that are still there. Every one of them must call it.
  std::unique_ptr<Communicator> shrink();

  // Waits for what is under way, then leaves the group. Doing it twice is fine.
  void close();
  // Leaves the group at once: what is under way ends with Closed here and with PeerLost where it is waited
  // for.
  void leave();
  bool closed() const { return fate().is_closed(); }
  // Throws Closed, or how the group failed.
  void usable();
  // The rank that has begun the fewest collectives, if that is fewer than this rank has; else -1. From any
  // thread.
  int latest() const { return diagnosis_.last_rank(); }

 private:
  // What waits for the progress thread, or is under way in it.
  struct Pending {
    std::unique_ptr<Steps> steps;
    std::shared_ptr<Work> work;
    Call call;  // the one under way
    bool begun = false;
    Clock::time_point started;
  };
  struct PendingTransfer {
    RequestPointer request;
    std::shared_ptr<Work> work;
    Clock::time_point submitted;
  };

  Fate& fate() { return transport_->fate(); }
  const Fate& fate() const { return transport_->fate(); }
  bool ours() const;  // not a forked child's
  void note(const Plan& plan);
  void begin(const Call& call);
  void begin_later(const Call& call);
  void run_behind(std::unique_ptr<Steps> steps);
  void run_to_end(Clock::duration timeout);
  void wait_for(const Request& request);
  void flush(const Transfer& send);
  int peer_of(const Request& request) const;
  [[noreturn]] void time_out(Clock::duration timeout) const;
  [[noreturn]] void time_out(const Request& request) const;
  Clock::duration or_default(Clock::duration timeout) const {
    return timeout.count() > 0 ? timeout : options_.timeout;
  }
  std::string now_doing() const;
  static std::string lengths(const ContractBroken& broken);

  // Runs `step`; whatever it throws that leaves the group in the middle of something ends it for all ranks.
  // `message`: what it does, if that is no collective.
  template <typename Step>
  void guarded(Step step) {
    guarded(nullptr, step);
  }
  template <typename Step>
  void guarded(const Transfer* message, Step step);
  [[noreturn]] void fail(const Failure& failure);

  // progress.cpp
  template <typename Push>
  void hand_over(Push push);
  void wake_progress();
  void progress();
  bool wait_for_something(const Pending& current);
  bool to_be_flushed() const;
  bool advance_current(Pending& current);
  bool begin_next(Pending& current);
  bool begin_call(Pending& current);
  bool finish_transfers();
  void finish(const PendingTransfer& transfer);
  void check_transfers();
  void pause_progress(Backoff& backoff, Pending& current);
  void finish_current(Pending& current, const std::exception_ptr& problem);
  void drop_pending(Pending& current, const std::exception_ptr& problem);
  void stop_progress();

  std::vector<std::string> exchange(const std::string& blob);
  GpuGroup as_gpus_need_it();

  void know(Links links);
  std::unique_ptr<Communicator> child(std::unique_ptr<Transport> transport, const std::vector<int>& members);

  const int rank_;
  const int size_;
  const char* const transport_name_;
  const Options options_;
  const std::unique_ptr<Transport> transport_;
  const Diagnosis diagnosis_;

  std::mutex
      collective_mutex_;  // guards the planner, the executor and what follows: one collective at a time
  Planner planner_;
  Executor executor_;
  std::uint64_t sequence_ = 0;
  std::uint64_t history_ = 0;  // of all calls so far
  Record current_;

  Links links_;

  PointToPoint point_to_point_;

  std::mutex queue_mutex_;
  Undestroyed<std::condition_variable> queue_changed_;
  std::deque<Pending> queue_;
  std::deque<PendingTransfer> transfers_;
  std::atomic<int> pending_{0};  // asynchronous collectives submitted and not over
  std::atomic<int> pending_transfers_{0};
  std::thread progress_thread_;
  bool stopping_ = false;

  GpuCollectives gpu_;

  const unsigned fork_epoch_;
};

template <typename Step>
void Communicator::guarded(const Transfer* message, Step step) {
  try {
    step();
  } catch (const Failure& failure) {
    fail(failure);
  } catch (const ContractBroken& broken) {
    fail(Failure(Cause::mismatch, broken.peer,
                 diagnosis_.disagreement(broken.peer, sequence_) + lengths(broken)));
  } catch (const Disagreement& found) {
    fail(Failure(Cause::mismatch, found.peer, diagnosis_.disagreement(found.peer, sequence_)));
  } catch (const InvalidArgument&) {
    throw;  // refused before anything was sent
  } catch (const Closed&) {
    throw;  // by another thread: peers see it
  } catch (...) {
    // Whoever leaves halfway must not be waited for.
    try {
      fail(Failure(Cause::peer_lost, rank_,
                   "rank " + std::to_string(rank_) + " was interrupted in " +
                       (message ? in_words(*message, rank_) : now_doing())));
    } catch (const Failure&) {
    }
    throw;
  }
}

}  // namespace ringreduce
