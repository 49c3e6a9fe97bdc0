// A group of ranks and all its operations.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/calls.h"
#include "engine/gpu/collectives.h"
#include "engine/planning/links.h"
#include "engine/progress.h"
#include "engine/statistics.h"

namespace ringreduce {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(std::unique_ptr<Transport> transport, const Options& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Programs of frameworks know a communicator by its number in the process: they may be kept on disk, where
  // an address means nothing. A number keeps nothing alive.
  std::int64_t number() const { return registered_.number; }
  // The communicator of a number, which a shared_ptr must own. Throws Closed if it has been freed.
  static std::shared_ptr<Communicator> numbered(std::int64_t number);

  int rank() const { return calls_.rank; }
  int size() const { return calls_.world; }
  const char* transport_name() const { return calls_.transport->name(); }
  bool oversubscribed() const { return calls_.transport->oversubscribed(); }
  // The number of each rank's host; empty if all ranks share one.
  const std::vector<int>& machines() const { return calls_.transport->told.machine; }
  std::size_t footprint() const { return calls_.transport->footprint() + calls_.executor.temp_bytes(); }
  const Options& options() const { return calls_.options; }

  // Runs a collective in this thread, or, if asynchronous calls are running, after them.
  void run(const Call& call) { progress_.run(call); }
  void run(const Call& call, BeforeWaiting& before) { progress_.run(call, before); }
  void run(Steps& steps) { progress_.run(steps); }
  // Hands it to the progress thread. Buffers must not change until the work is done. `arrays` owns them.
  std::shared_ptr<Work> submit(const Call& call, Arrays arrays = {}) {
    return progress_.submit(call, std::move(arrays));
  }
  // The bucket of gradients that this thread's next calls are for, in error messages; -1: none.
  int bucket() const { return bucket_; }
  void set_bucket(int number) { bucket_ = number; }
  std::shared_ptr<Work> submit(std::unique_ptr<Steps> steps) { return progress_.submit(std::move(steps)); }

  // Collectives of arrays in GPU memory, all of one GPU. They are launched on a stream of that device, and
  // the call returns. The first one meets the other ranks, and waits for them. Later calls throw later
  // failures. Without a stream, one of this communicator's own is used.
  void enqueue(const Call& call, std::optional<void*> stream) { gpu_.enqueue(call, stream); }
  // The same on this communicator's own stream, after the work that `stream` has now.
  std::shared_ptr<GpuWork> enqueue_beside(const Call& call, std::optional<void*> stream, Arrays arrays) {
    return gpu_.enqueue_beside(call, stream, std::move(arrays));
  }
  // Meets the other ranks before the first of those calls; a collective.
  void prepare_device(int device) { gpu_.prepare(device); }
  // Whether kernels, or NCCL, carry messages, too. Only if the device was prepared.
  bool carries_messages() { return gpu_.carries_messages(); }
  // Launches messages from and to GPU memory, without tags. All of them make progress together. Those between
  // two ranks are matched in the order of the calls; all else as for enqueue() and enqueue_beside().
  void exchange(int device, std::span<const Transfer> transfers, std::optional<void*> stream) {
    gpu_.exchange(device, transfers, stream);
  }
  std::shared_ptr<GpuWork> exchange_beside(int device, std::span<const Transfer> transfers,
                                           std::optional<void*> stream, Arrays arrays) {
    return gpu_.exchange_beside(device, transfers, stream, std::move(arrays));
  }
  // Registers GPU memory that NCCL may use in place. The memory is known by its first byte until it is
  // deregistered or the communicator is left. The first call that needs NCCL meets the other ranks.
  void register_memory(int device, void* memory, std::size_t bytes) {
    gpu_.register_memory(device, memory, bytes);
  }
  void deregister_memory(int device, void* memory) { gpu_.deregister_memory(device, memory); }
  // The communicator's own stream, and the bytes of GPU memory that it holds; null and 0 if nothing was
  // prepared.
  void* device_stream() { return gpu_.own_stream(); }
  std::size_t device_footprint() { return gpu_.footprint(); }
  // Whether the last collective that the GPU has ended was direct.
  bool was_direct() { return gpu_.was_direct(); }

  // Sends and receives at the same time; returns when the receive is complete.
  void swap(const Transfer& send, const Transfer& receive);
  // Sends or receives one message. A receive takes the oldest message with its tag, from its peer or from any
  // rank (any_source). Returns the other end's rank.
  int transfer(const Transfer& transfer);
  std::shared_ptr<Work> submit(const Transfer& transfer, Arrays arrays = {}) {
    return progress_.submit(transfer, std::move(arrays));
  }

  // Adds a custom schedule; returns its handle for Call::algorithm. `heaviest_round`: the most chunks that
  // any rank sends in one round. `in_rank_order`: keeps_rank_order() of all ranks' schedules.
  int add_schedule(const std::string& name, Schedule schedule, int heaviest_round,
                   bool in_rank_order = false);
  Choice explain(Collective collective, std::size_t bytes, Encoding wire = Encoding::none) const {
    return calls_.planner.choose(collective, bytes, wire);
  }

  // Measures the links between hosts, or between ranks if all share a host, and uses the result from now on.
  // A collective.
  Links measure_links();
  // Called after ranks have met. Measures the links if ranks are on several hosts, unless RINGREDUCE_LINKS is
  // off (with more than 16 hosts, only some links). Then logs what was chosen.
  void settle();
  // Measures the links and what pairs of hosts share, and makes the algorithm "synthesised" for them; or
  // makes it for a given network, the same on all ranks. A collective.
  void synthesise();
  void synthesise(Network network);
  // The synthesised algorithms; null if there are none.
  const Synthesis* synthesis() const { return calls_.planner.synthesis(); }
  // The way in which "synthesised" handles a buffer of this many bytes.
  Way synthesised(std::size_t bytes);
  // The links as far as they were measured.
  const Links& links() const { return links_; }
  // The order in which rings visit the ranks; empty: in rank order.
  const std::vector<int>& ring_order() const { return calls_.planner.order(); }

  // Ranks of equal color form a new communicator, ordered by key, then rank. A rank with a negative color
  // joins none, and gets null. `gpu`: none: as this one.
  std::unique_ptr<Communicator> split(int color, int key, std::optional<GpuOptions> gpu = {});
  // Returns a communicator of the surviving ranks. Every one of them must call it.
  std::unique_ptr<Communicator> shrink();
  // A vote that every rank takes part in. Returns whether all say yes: the same on all ranks, even if one
  // dies meanwhile. Then the group fails on all.
  bool agree(bool yes, Clock::duration timeout);
  // Takes over from the group that this one was made from what it still holds.
  void inherit(const Communicator& parent) { left_behind_ = parent.left_behind_; }

  // Waits for running calls, then leaves the group. May be called twice.
  void close();
  // Leaves the group at once. Running calls end with Closed here, and with PeerLost on ranks that wait for
  // this one.
  void leave();
  bool closed() const { return calls_.transport->fate().is_closed(); }
  // Whether some rank is known to have ended, or to have left.
  bool lacks_a_rank() const;
  // Whether this thread is in a collective of the group, further up its stack.
  bool in_a_call() const { return Turn::is_held_here(&calls_.turn); }
  // Throws Closed, or the group's failure.
  void usable() const { calls_.check_usable(); }
  // The rank that has begun the fewest collectives, if fewer than this rank; else -1. Callable from any
  // thread.
  int latest() const { return calls_.diagnosis.last_rank(); }
  // What is known of that rank and this rank's latest collective, in words.
  std::string latest_call(int late) const { return calls_.diagnosis.latest_call(late); }
  // What this rank's calls came to. Callable from any thread.
  Statistics statistics() const;
  // The longest waits from now on, in later statistics.
  void forget_longest_waits() { calls_.account.forget_longest(); }
  // Of all groups of the process, the latest of those that are gone as well.
  static std::vector<Statistics> all_statistics();

 private:
  std::vector<std::string> exchange(const std::string& blob);
  void know(Links links);
  void measure_links_if_far();
  void introduce(log::Level details) const;
  std::unique_ptr<Communicator> child(std::unique_ptr<Transport> transport, const std::vector<int>& members,
                                      std::uint64_t group, const GpuOptions& gpu);

  Calls calls_;
  const Registered registered_{*this};
  Progress progress_;
  GpuCollectives gpu_;
  Links links_;
  // Transports of earlier groups, from which ranks were left out that may live. They stay open as long as
  // this rank goes on: a rank that reaches them again must not find that it has ended.
  std::vector<std::shared_ptr<Transport>> left_behind_;
  std::atomic<int> bucket_{-1};
};

}  // namespace ringreduce
