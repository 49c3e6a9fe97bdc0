// A group of ranks and all its operations.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/calls/calls.h"
#include "engine/calls/progress.h"
#include "engine/communicator/statistics.h"
#include "engine/device/device.h"
#include "engine/planning/links.h"

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
  const std::string& transport_name() const { return calls_.transport->facts().name; }
  const std::string& fabric() const { return calls_.transport->fabric; }
  bool oversubscribed() const { return calls_.transport->facts().oversubscribed; }
  // The number of each rank's host; empty if all ranks share one.
  const std::vector<int>& machines() const { return calls_.transport->reports.machine; }
  std::size_t footprint() const {
    return calls_.transport->footprint() + calls_.executor.temp_bytes() + calls_.planner.footprint();
  }
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

  // Calls with arrays in device memory. Throws Error in a build without devices.
  DeviceCalls& device();
  DeviceCalls::Holdings device_holdings() { return device_ ? device_->holdings() : DeviceCalls::Holdings(); }

  // Sends and receives at the same time; returns when the receive is complete.
  void swap(const Transfer& send, const Transfer& receive);
  // Sends or receives one message. A receive takes the oldest message with its tag, from its peer or from any
  // rank (any_source). Returns the other end's rank.
  int transfer(const Transfer& transfer);
  std::shared_ptr<Work> submit(const Transfer& transfer, Arrays arrays = {}) {
    return progress_.submit(transfer, std::move(arrays));
  }

  // Adds a custom schedule; returns its handle for Call::algorithm. `heaviest_round`: the most chunks that
  // any rank sends in one round. `order`: order_of() all ranks' schedules.
  int add_schedule(const std::string& name, Schedule schedule, int heaviest_round, Order order = Order::any);
  std::pair<Choice, std::string> explain(Collective collective, std::size_t bytes, Encoding wire,
                                         bool commutes) const {
    return calls_.planner.explain(collective, bytes, wire, commutes);
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
  // The links that were measured.
  const Links& links() const { return links_; }
  // The order in which rings visit the ranks; empty: in rank order.
  const std::vector<int>& ring_order() const { return calls_.planner.order(); }

  // Ranks of equal color form a new communicator, ordered by key, then rank. A rank with a negative color
  // joins none, and gets null. `gpu`: none: as this one.
  std::unique_ptr<Communicator> split(int color, int key, std::optional<GpuOptions> gpu = {});
  // Returns a communicator of the surviving ranks. Every one of them must call it.
  std::unique_ptr<Communicator> shrink();
  // A vote of all ranks. Returns whether all say yes. All ranks get the same answer, even if one dies during
  // the vote; the group then fails on all of them.
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
  // The statistics of this rank's calls. Callable from any thread.
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
  const std::unique_ptr<DeviceCalls> device_;  // null in a build without devices
  Links links_;
  // Transports of earlier groups, from which ranks were left out that may live. They stay open as long as
  // this rank runs: a rank that reaches them again must not conclude that it has ended.
  std::vector<std::shared_ptr<Transport>> left_behind_;
  std::atomic<int> bucket_{-1};
};

}  // namespace ringreduce
