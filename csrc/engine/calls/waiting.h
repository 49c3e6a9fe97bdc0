// The one loop in which a thread waits for other ranks.
#pragma once

#include <chrono>

#include "engine/accounting/account.h"
#include "transport/interface/transport.h"

namespace ringreduce {

inline constexpr std::chrono::milliseconds look_every{5};
inline constexpr std::chrono::microseconds poll_every{200};
inline constexpr unsigned moves_between_looks = 64;  // look even if the loop never has to wait

// Throws Interrupted if a signal asks to stop; see set_interrupt_check().
void check_interrupt();
using InterruptCheck = bool (*)();
InterruptCheck set_interrupt_check(InterruptCheck check);

// Waits until done(). Calls advance() to make progress, and lets time pass if it cannot. Throws the group's
// failure, and what the transport's waits throw. look(waited) is called every few milliseconds, for
// deadlines, and may throw. `poll`, if given, lets the caller make progress with something else, instead of
// handling signals. `number`: of the collective that waits, for the account; 0 for others.
template <class Done, class Advance, class HeldUpBy, class Look>
void wait_until(Transport& transport, Account& account, std::uint64_t number, void (*poll)(), Done done,
                Advance advance, HeldUpBy held_up_by, Look look) {
  Backoff backoff;
  TimedWaits timed(account, backoff);
  if (poll) backoff.longest_sleep = poll_every;
  Clock::time_point start, last_look;  // read at the first look: most waits end before it
  unsigned moves = 0;
  while (!done()) {
    if (advance()) {
      timed.over();
      if (++moves % moves_between_looks != 0) continue;
      transport.check();
    } else {
      const int peer = held_up_by();
      timed.held_up_by(peer, number);
      if (!transport.pause(backoff, peer)) continue;
    }
    if (poll) poll();
    const auto now = Clock::now();
    if (start == Clock::time_point()) start = last_look = now;
    if (now - last_look < look_every) continue;
    last_look = now;
    if (!poll) check_interrupt();
    look(now - start);
  }
}

}  // namespace ringreduce
