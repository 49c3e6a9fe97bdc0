// Counts a rank's calls by kind, and the time that they waited for each rank. A call that need not wait adds
// to two numbers; bench/engine/two_builds.py measures what that costs.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/planning/plan.h"
#include "transport/interface/count.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// Collectives of one kind that ran one algorithm.
struct Tally {
  Collective collective{};
  std::string algorithm;
  CallsAndBytes counted;
  std::atomic<Clock::duration> waited{};
};

// The waits for one rank.
struct PeerWaits {
  std::atomic<std::uint64_t> count{0};
  std::atomic<Clock::duration> total{}, longest{};
  std::atomic<std::uint64_t> longest_in{0};  // the number of the call; 0: no collective
};

class Account {
 public:
  explicit Account(int world) : peers_(static_cast<std::size_t>(world) + 1) {}

  // A collective begins. By the thread whose turn it is.
  void begin(const Plan& plan, std::size_t bytes) {
    if (!plan.tally) [[unlikely]]
      plan.tally = &tally_of(plan.record);
    plan.tally->counted.add(bytes);
    current_ = plan.tally;
  }
  // A wait for a peer (-1: for none in particular) is over. `number`: of the collective, or 0.
  void waited(int peer, Clock::duration time, std::uint64_t number);

  void forget_longest();

  // For any thread. Tallies stay where they are.
  std::vector<const Tally*> tallies() const;
  const std::vector<PeerWaits>& peers() const { return peers_; }  // by rank; the last: no rank in particular

 private:
  Tally& tally_of(const Record& record);

  mutable std::mutex mutex_;  // guards the list
  std::deque<Tally> tallies_;
  Tally* current_ = nullptr;
  std::vector<PeerWaits> peers_;
};

// Times the waits that share a Backoff. The clock is read only for waits that last: those that end within a
// few microseconds of spinning are not counted.
class TimedWaits {
 public:
  TimedWaits(Account& account, Backoff& backoff) : account_(account), backoff_(backoff) {}
  TimedWaits(const TimedWaits&) = delete;
  TimedWaits& operator=(const TimedWaits&) = delete;
  ~TimedWaits() { over(); }

  // Nothing moves, because of a peer, in the collective of this number (0: in no collective). Before a pause.
  void held_up_by(int peer, std::uint64_t number) {
    if (peer != peer_) {
      if (since_ != Clock::time_point() || backoff_.away != counted_) [[unlikely]]
        count();
      peer_ = peer;
    }
    number_ = number;
    if (backoff_.rounds == timed_from) [[unlikely]]
      since_ = Clock::now() - (backoff_.away - counted_);
  }
  // Something moved, or nothing is left to wait for.
  void over() {
    if (since_ != Clock::time_point() || backoff_.away != Clock::duration()) [[unlikely]]
      end();
    backoff_.reset();
  }

 private:
  // Pauses, of which each is a look at a message's flag until the core is given away.
  static constexpr std::uint32_t timed_from = 256;

  void count();
  void end();

  Account& account_;
  Backoff& backoff_;
  int peer_ = -1;
  std::uint64_t number_ = 0;
  Clock::time_point since_{};  // of a long wait
  Clock::duration counted_{};  // of backoff_.away
};

}  // namespace ringreduce
