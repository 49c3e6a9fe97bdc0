// The log lines of a new group: where its ranks are, and what was chosen.
#include <algorithm>
#include <map>
#include <sstream>

#include "engine/communicator/communicator.h"
#include "reduce/reduce.h"
#include "transport/interface/log.h"

namespace ringreduce {
namespace {

constexpr std::size_t largest = std::size_t{1} << 40;  // larger than all sizes in the tables

// For example "one_shot up to 16 KiB, ring above".
std::string algorithms_by_size(const Planner& planner, Collective collective) {
  const auto chosen = [&](std::size_t bytes) { return planner.explain(collective, bytes).first.entry->name; };
  std::string text;
  for (std::size_t from = 1; from < largest;) {
    std::size_t last = from, beyond = 2 * from;
    if (chosen(from) == chosen(beyond)) {
      from = beyond;
      continue;
    }
    while (beyond - last > 1) {
      const std::size_t middle = last + (beyond - last) / 2;
      (chosen(middle) == chosen(from) ? last : beyond) = middle;
    }
    text += std::string(chosen(from)) + " up to " + in_units(last) + ", ";
    from = beyond;
  }
  return text + std::string(chosen(largest)) + (text.empty() ? "" : " above");
}

// "0-3, 6".
std::string in_words(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0, last = 0; i < ranks.size(); i = last + 1) {
    for (last = i; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text.append("-").append(std::to_string(ranks[last]));
  }
  return text;
}

std::string hosts_in_words(const std::vector<int>& machines) {
  std::map<int, std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < machines.size(); ++rank) {
    hosts[machines[rank]].push_back(static_cast<int>(rank));
  }
  if (hosts.size() < 2) return "on one host";
  std::string text = "on " + std::to_string(hosts.size()) + " hosts (ranks ";
  for (const auto& [host, ranks] : hosts) {
    text += (host == hosts.begin()->first ? "" : "; ") + in_words(ranks);
  }
  return text + ")";
}

std::string in_words(const Links& links, const std::vector<int>& order) {
  const auto known = [](double value) { return value > 0; };
  std::vector<double> bandwidths;
  std::copy_if(links.bandwidth.begin(), links.bandwidth.end(), std::back_inserter(bandwidths), known);
  if (bandwidths.empty()) return "links between hosts: unknown";
  std::ostringstream text;
  text.precision(3);
  text << "links between hosts: up to " << 1e6 * *std::max_element(links.latency.begin(), links.latency.end())
       << " us";
  const auto [least, most] = std::minmax_element(bandwidths.begin(), bandwidths.end());
  text << ", " << *least / 1e6 << " to " << *most / 1e6 << " MB/s";
  if (!order.empty()) text << "; rings visit the ranks in the order";
  for (const int rank : order) text << ' ' << rank;
  return text.str();
}

}  // namespace

// Rank 0 reports what all ranks share, and the first rank of each host how it is connected. At level debug
// every rank reports everything.
void Communicator::introduce(log::Level details) const {
  const bool all = log::says(log::Level::debug);
  const std::vector<int>& hosts = machines();
  const bool first_of_host =
      hosts.empty() || std::find(hosts.begin(), hosts.end(), hosts[rank()]) - hosts.begin() == rank();
  const std::string way = calls_.transport->way(), &fabric = calls_.transport->fabric;
  if ((first_of_host || all) && !way.empty()) {
    calls_.say(details, way + (fabric.empty() ? "" : "; ") + fabric);
  }
  if ((rank() != 0 && !all) || !log::says(log::Level::info)) return;
  calls_.say(log::Level::info, "a group of " + std::to_string(size()) + " ranks over " + transport_name() +
                                   " " + hosts_in_words(hosts) +
                                   (oversubscribed() ? ", with more ranks than cores" : "") +
                                   (options().reproducible ? ", reproducible" : ""));
  if (!log::says(details)) return;
  if (links_.world > 0) calls_.say(details, in_words(links_, ring_order()));
  calls_.say(details,
             std::string("reductions use ") + instruction_set() + "; " + calls_.planner.tables_in_words());
  std::vector<std::pair<std::string, std::string>>
      choices;  // collectives with the same choices share an entry
  for (int i = 0; i < collective_count; ++i) {
    const auto collective = static_cast<Collective>(i);
    const std::string name(name_of(collective)), algorithms = algorithms_by_size(calls_.planner, collective);
    const auto same = [&](const auto& choice) { return choice.second == algorithms; };
    if (const auto known = std::find_if(choices.begin(), choices.end(), same); known != choices.end()) {
      known->first += ", " + name;
    } else {
      choices.emplace_back(name, algorithms);
    }
  }
  for (const auto& [names, algorithms] : choices) calls_.say(details, names + ": " + algorithms);
}

}  // namespace ringreduce
