// Which cores the ranks have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace ringreduce {

// The cores that a process may run on, as plain data that ranks can exchange.
struct Cores {
  static constexpr int words = 16;
  std::uint64_t allowed[words] = {};  // a bit per core; cores from 1024 on share the bits of others
  int quota = 0;                      // the container's limit in cores; 0: none
  int count() const;
  // Joins the cores of two processes: launchers often bind each rank to its own core.
  void add(const Cores& other);
};
Cores usable_cores();

// The cores of this host, bound to or not, as far as the container's limit goes.
int cores_of_host();

// The folder with a host's files, for tests that describe one. Empty: this host's own.
std::string described_host();

// Whether any ranks share cores. Uses the `host.machine` and `cores` that ranks exchange: ranks of one
// machine share its cores, even if they are in different network namespaces.
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
