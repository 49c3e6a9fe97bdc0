// How a thread lets time pass, and which cores the ranks have.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

namespace ringreduce {

// A wait of at most this length may spin.
constexpr std::chrono::milliseconds brief_wait{1};

// A hint to the core that this is a spinning loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps until `word` is woken, no longer holds `expected`, or the timeout passes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit);
void futex_wake(std::atomic<std::uint32_t>& word);

// The cores that a process may run on, as plain data that ranks can exchange.
struct Cores {
  static constexpr int words = 16;
  std::uint64_t allowed[words] = {};  // a bit per core
  int quota = 0;                      // the container's limit in cores; 0: none
  int count() const;
  // Joins the cores of two processes: launchers often bind each rank to its own core.
  void add(const Cores& other);
};
Cores usable_cores();

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
