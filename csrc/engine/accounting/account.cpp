#include "engine/accounting/account.h"

#include "engine/planning/description.h"

namespace ringreduce {
namespace {

void add(std::atomic<Clock::duration>& total, Clock::duration more) {
  auto known = total.load(std::memory_order_relaxed);
  while (!total.compare_exchange_weak(known, known + more, std::memory_order_relaxed)) {
  }
}

}  // namespace

Tally& Account::tally_of(const Record& record) {
  const Kind kind = kind_of(record);
  const std::lock_guard lock(mutex_);
  for (Tally& known : tallies_) {
    if (known.collective == kind.collective && known.algorithm == kind.algorithm) return known;
  }
  Tally& made = tallies_.emplace_back();
  made.collective = kind.collective;
  made.algorithm = kind.algorithm;
  return made;
}

std::vector<const Tally*> Account::tallies() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Tally*> all;
  for (const Tally& one : tallies_) all.push_back(&one);
  return all;
}

// Several threads may wait for messages at the same time.
void Account::waited(int peer, Clock::duration time, std::uint64_t number) {
  PeerWaits& waits = peers_[peer < 0 ? peers_.size() - 1 : static_cast<std::size_t>(peer)];
  waits.count.fetch_add(1, std::memory_order_relaxed);
  add(waits.total, time);
  if (time > waits.longest.load(std::memory_order_relaxed)) {
    waits.longest.store(time, std::memory_order_relaxed);
    waits.longest_in.store(number, std::memory_order_relaxed);
  }
  if (number > 0 && current_) add(current_->waited, time);
}

void Account::forget_longest() {
  for (PeerWaits& waits : peers_) {
    waits.longest.store({}, std::memory_order_relaxed);
    waits.longest_in.store(0, std::memory_order_relaxed);
  }
}

// A wait that has lasted goes to the account of the rank that it was for until now.
void TimedWaits::count() {
  Clock::duration waited = backoff_.away - counted_;
  if (since_ != Clock::time_point()) {
    const auto now = Clock::now();
    waited = now - since_;
    since_ = now;
  }
  counted_ = backoff_.away;
  if (waited > Clock::duration()) account_.waited(peer_, waited, number_);
}

void TimedWaits::end() {
  count();
  peer_ = -1;
  since_ = Clock::time_point();
  counted_ = Clock::duration();
}

}  // namespace ringreduce
