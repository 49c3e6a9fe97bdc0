// The waiting of RemoteTransport: when to look at the wire at once, when to sleep on it, who is silent.
#include "transport/interface/wait.h"

#include <algorithm>

#include "transport/remote/remote.h"

namespace ringreduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds spin_for{50};  // where every rank has a core
constexpr milliseconds longest_sleep{20};
constexpr milliseconds follower_sleep{2};
constexpr milliseconds check_peers_every{50};
constexpr milliseconds silence{150};       // after which a peer must show that it lives
constexpr milliseconds loss_is_final{20};  // what a dead peer had sent may still complete a wait

}  // namespace

bool RemoteTransport::pump() {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || !progress(lock, Clock::duration::zero())) return false;
  let_others_look();
  return true;
}

bool RemoteTransport::pause(Backoff& backoff, int waiting_for) {
  backoff.rounds++;
  if (pump()) return false;
  check();
  constexpr std::uint32_t rounds_without_clock = 4;
  if (!oversubscribed_ && backoff.rounds < rounds_without_clock) return false;
  const auto now = Clock::now();
  if (backoff.since == Clock::time_point()) backoff.since = backoff.checked = now;
  const auto waited = now - backoff.since;
  if (!oversubscribed_ && waited < spin_for) {
    relax();
    return false;
  }
  {
    Lock lock(mutex_);
    say_whom_we_wait_for(waiting_for);
    const auto longest = std::min<Clock::duration>(longest_sleep, backoff.longest_sleep);
    sleep(lock, std::min(std::max<Clock::duration>(waited / 4, milliseconds(1)), longest));
    if (lost_count_ > 0) check_losses(Clock::now());
  }
  check();
  if (now - backoff.checked >= check_peers_every) {
    backoff.checked = now;
    check_peers(backoff, waiting_for);
  }
  return true;
}

// One thread waits for the wire, the others for that one.
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

// A peer that is lost without having closed can never finish what it began.
void RemoteTransport::check_losses(Clock::time_point now) {
  if (now - lost_since_ < loss_is_final) return;
  for (int peer = 0; peer < world; ++peer) {
    if (!peers_[peer].lost || has_closed(peer)) continue;
    throw Failure(Cause::peer_lost, peer, "rank " + std::to_string(peer) + " " + peers_[peer].how);
  }
}

void RemoteTransport::check_peers(Backoff& backoff, int waiting_for) {
  const Lock lock(mutex_);
  check_agreement();
  if (waiting_for < 0) {
    for (int peer = 0; peer < world; ++peer) {
      if (peer != rank && connected(peer) && !has_closed(peer)) check_silence(backoff, peer);
    }
    return;
  }
  if (has_closed(waiting_for)) {
    if (backoff.closed_peer == waiting_for) {
      throw Failure(Cause::peer_lost, waiting_for,
                    "rank " + std::to_string(waiting_for) + " closed its communicator while rank " +
                        std::to_string(rank) + " was waiting for it");
    }
    backoff.closed_peer = waiting_for;
    return;
  }
  check_silence(backoff, waiting_for);
}

void RemoteTransport::check_silence(const Backoff& backoff, int of_peer) {
  Peer& peer = peers_[of_peer];
  const auto now = Clock::now();
  if (peer.spoken) {
    peer.spoken = false;
    peer.heard = now;
  }
  if (now - std::max(peer.heard, backoff.since) < silence) return;
  ask(of_peer);
  look_after(of_peer);
}

}  // namespace ringreduce
