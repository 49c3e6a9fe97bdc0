// How RemoteTransport lets time pass: when to look at the wire at once, when to sleep on it, and for how
// long.
#include "transport/remote/remote.h"

#include <algorithm>

#include "transport/interface/wait.h"

namespace ringreduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds spin_for{50};  // if every rank has a core
constexpr milliseconds longest_sleep{20};
constexpr milliseconds follower_sleep{2};
constexpr milliseconds check_remote_every{50};
constexpr milliseconds a_little{5};

}  // namespace

bool RemoteTransport::pump() {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || !progress(lock, Clock::duration::zero())) return false;
  let_others_look();
  return true;
}

// Going back to the loop that waits takes longer than a small message does from a rank on this host.
bool RemoteTransport::poll(int lane, int peer, Message& message) {
  Lock lock(mutex_);
  if (frames_.messages.poll(lane, peer, message)) return true;
  if (lane >= collective_lanes || !looks_quickly() || !progress(lock, Clock::duration::zero())) return false;
  let_others_look();
  return frames_.messages.poll(lane, peer, message);
}

bool RemoteTransport::pause(Backoff& backoff, int waiting_for) {
  backoff.rounds++;
  if (pump()) return false;
  check();
  constexpr std::uint32_t rounds_without_clock = 4;
  if (!facts_.oversubscribed && backoff.rounds < rounds_without_clock) return false;
  const auto now = Clock::now();
  if (backoff.since == Clock::time_point()) backoff.since = backoff.checked = now;
  const auto waited = now - backoff.since;
  if (!facts_.oversubscribed && waited < spin_for) {
    relax();
    return false;
  }
  {
    Lock lock(mutex_);
    say_whom_we_wait_for(waiting_for);
    const auto longest = std::min<Clock::duration>(longest_sleep, backoff.longest_sleep);
    sleep(lock, std::min(std::max<Clock::duration>(waited / 4, milliseconds(1)), longest));
    control_.check_losses();
  }
  backoff.away = Clock::now() - backoff.since;
  check();
  if (now - backoff.checked >= check_remote_every) {
    backoff.checked = now;
    locked(control_)->check_peers(backoff, waiting_for);
  }
  return true;
}

// One thread waits for the wire, the others for that thread.
void RemoteTransport::sleep(Lock& lock, Clock::duration limit) {
  if (driving_) {
    const std::uint32_t before = moved_.load();
    ++followers_;
    lock.unlock();
    futex_wait(moved_, before, follower_sleep);
    lock.lock();
    --followers_;
    return;
  }
  driving_ = true;
  progress(lock, limit);
  driving_ = false;
  let_others_look();
}

void RemoteTransport::let_others_look() {
  if (followers_ == 0) return;
  moved_.fetch_add(1);
  futex_wake(moved_);
}

void RemoteTransport::wake() {
  const Lock lock(mutex_);
  moved_.fetch_add(1);
  if (followers_ > 0) futex_wake(moved_);
  if (driving_) interrupt();
}

void RemoteTransport::await_boards(int waiting_for) {
  say_whom_we_wait_for(waiting_for);
  Lock lock(mutex_);
  progress(lock, a_little);
  control_.boards_are_late();
  let_others_look();
}

std::vector<Record> RemoteTransport::records(int of_rank) {
  Lock lock(mutex_);
  if (of_rank != rank) {
    constexpr milliseconds patience{400};
    const auto start = Clock::now();
    const bool asked = control_.ask_all();
    while (asked && control_.answers_are_due() && Clock::now() - start < patience) {
      progress(lock, a_little);
      let_others_look();
    }
    progress(lock, Clock::duration::zero());
  }
  return control_.records(of_rank);
}

// Every rank that waits for this one is connected to it, and is told. It tells those that wait for it.
void RemoteTransport::abort(const Failure& found) {
  {
    Lock lock(mutex_);
    if (!control_.end_all(found)) return;
    progress(lock, Clock::duration::zero());
    if (fate().failure()->cause == Cause::mismatch) answer_questions(lock);
  }
  wake();
}

// Others may be about to notice the same, and to ask this rank what it called. It will not be there to answer
// later.
void RemoteTransport::answer_questions(Lock& lock) {
  constexpr milliseconds at_most{300}, quiet{60};
  const auto start = Clock::now();
  auto moved = start;
  for (auto now = start; now - start < at_most && now - moved < quiet; now = Clock::now()) {
    if (progress(lock, a_little)) moved = now;
  }
}

}  // namespace ringreduce
