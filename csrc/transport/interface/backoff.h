// The progress of one wait: spinning first, then yielding the core, then sleeping.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "transport/interface/fate.h"

namespace ringreduce {

using Clock = std::chrono::steady_clock;

struct Backoff {
  Backoff() = default;
  explicit Backoff(Clock::duration longest_sleep) : longest_sleep(longest_sleep) {}
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  ~Backoff() { reset(); }

  // Something moved: the next wait starts over.
  void reset() {
    if (rounds == 0) return;
    if (sleepers) sleepers->fetch_sub(1, std::memory_order_relaxed);
    sleepers = nullptr;
    rounds = yields = 0;
    closed_peer = -1;
    since = Clock::time_point();
    away = Clock::duration();
  }

  // A peer that is waited for has closed. The wait fails the second time, because the peer may have sent
  // before it closed, and the wait looks at its messages once more in between. `name` and `own_name` are the
  // names of the two ranks.
  void found_closed(int peer, int name, int own_name) {
    if (closed_peer == peer) {
      const std::string who = "rank " + std::to_string(name);
      throw Failure(
          Cause::peer_lost, name,
          who + " closed its communicator while rank " + std::to_string(own_name) + " was waiting for it");
    }
    closed_peer = peer;
  }

  std::uint32_t rounds = 0;
  std::uint32_t yields = 0;
  std::uint32_t armed = 0;                         // the doorbell's value before the last look
  std::atomic<std::uint32_t>* sleepers = nullptr;  // the count that asks peers to ring, while we are counted
  int closed_peer = -1;                            // see found_closed()
  Clock::time_point since;
  Clock::time_point checked;
  Clock::duration away{};                                         // spent in pauses that yielded the core
  Clock::duration longest_sleep = std::chrono::milliseconds(20);  // until the caller looks again
};

}  // namespace ringreduce
