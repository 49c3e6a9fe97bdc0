#include "engine/communicator/statistics.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "engine/communicator/communicator.h"
#include "transport/interface/of_process.h"

namespace ringreduce {
namespace {

constexpr std::size_t most_kept = 64;  // groups that are gone

struct Registry {
  std::mutex mutex;
  std::map<std::int64_t, Communicator*> live;
  std::int64_t next = 0;  // number
  std::deque<Statistics> gone;
};

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::int64_t add(Communicator& communicator) {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  all.live.emplace(all.next, &communicator);
  return all.next++;
}

}  // namespace

Registered::Registered(Communicator& communicator) : number(add(communicator)), communicator_(communicator) {}

Registered::~Registered() {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  const auto is_it = [this](const auto& one) { return one.second == &communicator_; };
  if (std::erase_if(all.live, is_it) == 0) return;  // its process has forked this one
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
  for (const TransportCount& one : calls_.transport->counts()) found.counts.emplace(one.what, one.number);
  return found;
}

std::vector<Statistics> Communicator::all_statistics() {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  std::vector<Statistics> found(all.gone.begin(), all.gone.end());
  for (const auto& [number, one] : all.live) found.push_back(one->statistics());
  return found;
}

std::shared_ptr<Communicator> Communicator::numbered(std::int64_t number) {
  auto& all = of_process<Registry>();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.live.find(number); found != all.live.end()) {
    if (auto communicator = found->second->weak_from_this().lock()) return communicator;
  }
  const std::string name = "communicator number " + std::to_string(number);
  if (number < 0 || number >= all.next) {
    throw Error("this process has no " + name + ": the program was made in another one");
  }
  throw Closed(name + " has been freed: keep a communicator for as long as programs call it");
}

}  // namespace ringreduce
