// Whether ranks have to share cores, wherever they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "transport/interface/wait.h"

namespace ringreduce {

// Of what ranks tell each other, `host.machine` and `cores`: ranks of one machine share its cores, whichever
// of its networks they are in.
template <typename Ranks>
bool some_host_is_crowded(const Ranks& all) {
  std::map<std::uint64_t, std::pair<int, Cores>> hosts;
  for (const auto& one : all) {
    auto& [ranks, cores] = hosts[one.host.machine];
    ++ranks;
    cores.add(one.cores);
  }
  return std::any_of(hosts.begin(), hosts.end(),
                     [](const auto& host) { return host.second.first > host.second.second.count(); });
}

}  // namespace ringreduce
