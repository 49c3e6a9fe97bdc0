// A group of ranks and everything one can ask of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/calls.h"
#include "engine/gpu/collectives.h"
#include "engine/planning/links.h"
#include "engine/progress.h"

namespace ringreduce {

class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, const Options& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return calls_.rank; }
  int size() const { return calls_.world; }
  const char* transport_name() const { return calls_.transport->name(); }
  bool oversubscribed() const { return calls_.transport->oversubscribed(); }
  // A number for each rank's host; empty: all ranks share one.
  const std::vector<int>& machines() const { return calls_.transport->told.machine; }
  std::size_t footprint() const { return calls_.transport->footprint() + calls_.executor.temp_bytes(); }
  const Options& options() const { return calls_.options; }

  // Runs a collective in this thread (or, if asynchronous calls are under way, behind them).
  void run(const Call& call) { progress_.run(call); }
  void run(Steps& steps) { progress_.run(steps); }
  // Hands it to the progress thread. Buffers must stay as they are until the work is done.
  std::shared_ptr<Work> submit(const Call& call) { return progress_.submit(call); }
  std::shared_ptr<Work> submit(std::unique_ptr<Steps> steps) { return progress_.submit(std::move(steps)); }

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
  std::shared_ptr<Work> submit(const Transfer& transfer) { return progress_.submit(transfer); }

  // Adds a schedule written elsewhere; returns its handle for Call::algorithm. `heaviest_round` is the most
  // chunks that any rank sends in one round of it. `in_rank_order`: keeps_rank_order() of all ranks'
  // schedules.
  int add_schedule(const std::string& name, Schedule schedule, int heaviest_round,
                   bool in_rank_order = false);
  Choice explain(Collective collective, std::size_t bytes, Encoding wire = Encoding::none) const {
    return calls_.planner.choose(collective, bytes, wire);
  }

  // Measures the links between hosts, or where all ranks share one those between ranks, and makes use of what
  // it finds from now on. A collective.
  Links measure_links();
  // For those who have just met: the same for ranks on several hosts, unless RINGREDUCE_LINKS is off (of more
  // than 16 hosts it measures some links only). Then says in the log what was chosen.
  void settle();
  // Measures them, and what pairs of hosts share, and makes what algorithm "synthesised" is from then on. A
  // collective. Or for a network that is known: all ranks must say the same.
  void synthesise();
  void synthesise(Network network);
  // What was made; null where nothing was.
  const Synthesis* synthesis() const { return calls_.planner.synthesis(); }
  // How it is done for a buffer of so many bytes.
  Way synthesised(std::size_t bytes);
  // What is known of them.
  const Links& links() const { return links_; }
  // The order in which rings visit the ranks; empty: by number.
  const std::vector<int>& ring_order() const { return calls_.planner.order(); }

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
  bool closed() const { return calls_.transport->fate().is_closed(); }
  // Throws Closed, or how the group failed.
  void usable() const { calls_.check_usable(); }
  // The rank that has begun the fewest collectives, if that is fewer than this rank has; else -1. From any
  // thread.
  int latest() const { return calls_.diagnosis.last_rank(); }

 private:
  std::vector<std::string> exchange(const std::string& blob);
  void know(Links links);
  void measure_links_if_far();
  void introduce(log::Level details) const;
  std::unique_ptr<Communicator> child(std::unique_ptr<Transport> transport, const std::vector<int>& members);

  Calls calls_;
  Progress progress_;
  GpuCollectives gpu_;
  Links links_;
};

}  // namespace ringreduce
