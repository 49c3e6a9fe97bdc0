// The one loop in which a thread waits for other ranks.
#pragma once

#include <chrono>

#include "transport/interface/transport.h"

namespace ringreduce {

inline constexpr std::chrono::milliseconds look_every{5};
inline constexpr std::chrono::microseconds poll_every{200};
inline constexpr unsigned moves_between_looks = 64;  // who never waits looks too

// Throws Interrupted if the process has been asked to break off; see set_interrupt_check().
void check_interrupt();
void set_interrupt_check(bool (*check)());

// Until done(): moves on what advance() can move, and lets time pass where that is nothing. Throws what ends
// the group, and what the waits of the transport throw. look(waited) is called every few milliseconds, for
// deadlines, and may throw. `poll`, if there is one, keeps something else of the caller's going, instead of
// signals.
template <class Done, class Advance, class HeldUpBy, class Look>
void wait_until(Transport& transport, void (*poll)(), Done done, Advance advance, HeldUpBy held_up_by,
                Look look) {
  Backoff backoff;
  if (poll) backoff.longest_sleep = poll_every;
  const auto start = Clock::now();
  auto last_look = start;
  unsigned moves = 0;
  while (!done()) {
    if (advance()) {
      backoff.reset();
      if (++moves % moves_between_looks != 0) continue;
      transport.check();
    } else if (!transport.pause(backoff, held_up_by())) {
      continue;
    }
    if (poll) poll();
    const auto now = Clock::now();
    if (now - last_look < look_every) continue;
    last_look = now;
    if (!poll) check_interrupt();
    look(now - start);
  }
}

}  // namespace ringreduce
