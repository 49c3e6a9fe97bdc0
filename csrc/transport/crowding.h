// Whether ranks have to share cores, wherever they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "transport/wait.h"

namespace ringreduce {

// Of what ranks tell each other, `host.machine` and `cores`: ranks of one machine share its cores, whichever
// of its networks they are in.
template <typename Cards>
bool some_host_is_crowded(const Cards& cards) {
  std::map<std::uint64_t, std::pair<int, Cores>> hosts;
  for (const auto& card : cards) {
    auto& [ranks, cores] = hosts[card.host.machine];
    ++ranks;
    cores.add(card.cores);
  }
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const auto& host) { return host.second.first > host.second.second.count(); });
}

}  // namespace ringreduce
