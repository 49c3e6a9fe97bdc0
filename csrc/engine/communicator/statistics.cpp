#include "engine/communicator/statistics.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include "engine/communicator/communicator.h"
#include "transport/interface/of_process.h"

namespace ringreduce {
namespace {

constexpr std::size_t most_kept = 64;  // groups that are gone

struct Registry {
  std::mutex mutex;
  std::vector<const Communicator*> live;
  std::deque<Statistics> gone;
};

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Registered::Registered(const Communicator& communicator) : communicator_(communicator) {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  all.live.push_back(&communicator_);
}

Registered::~Registered() {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  if (std::erase(all.live, &communicator_) == 0) return;  // its process has forked this one
  Statistics last = communicator_.statistics();
  if (last.calls.empty()) return;
  last.closed = true;
  all.gone.push_back(std::move(last));
  if (all.gone.size() > most_kept) all.gone.pop_front();
}

Statistics Communicator::statistics() const {
  Statistics found;
  found.group = calls_.transport->reports.group;
  found.rank = rank();
  found.world = size();
  found.transport = transport_name();
  found.members = options().members;
  found.closed = closed();
  for (const Tally* tally : calls_.account.tallies()) {
    found.calls.push_back({std::string(name_of(tally->collective)), tally->algorithm, tally->counted.calls,
                           tally->counted.bytes, seconds(tally->waited.load(std::memory_order_relaxed))});
  }
  const auto add_messages = [&](const char* name, const CallsAndBytes& counted) {
    if (counted.calls > 0) found.calls.push_back({name, "", counted.calls, counted.bytes, 0});
  };
  add_messages("send", calls_.messages.sends());
  add_messages("recv", calls_.messages.receives());
  for (const PeerWaits& waits : calls_.account.peers()) {
    found.waits.push_back({waits.count.load(std::memory_order_relaxed),
                           seconds(waits.total.load(std::memory_order_relaxed)),
                           seconds(waits.longest.load(std::memory_order_relaxed)),
                           waits.longest_in.load(std::memory_order_relaxed)});
  }
  return found;
}

std::vector<Statistics> Communicator::all_statistics() {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  std::vector<Statistics> found(all.gone.begin(), all.gone.end());
  for (const Communicator* one : all.live) found.push_back(one->statistics());
  return found;
}

}  // namespace ringreduce
