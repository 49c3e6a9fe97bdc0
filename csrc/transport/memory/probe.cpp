#include "transport/memory/probe.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "transport/interface/thread.h"

namespace ringreduce {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int trips = 100;  // in one run, so that an interruption spoils one run only
constexpr int runs = 401;
constexpr auto limit = std::chrono::milliseconds(15);

struct Flags {
  alignas(128) std::atomic<int> ping{0};
  alignas(128) std::atomic<int> pong{0};
  alignas(128) std::atomic<bool> over{false};
};

// Two cores that threads of this process can be bound to. Launchers bind a rank to a single core, but a
// thread may still use the others of its container.
std::vector<int> two_cores() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  if (CPU_COUNT(&allowed) < 2) {
    std::memset(&allowed, 0xff, sizeof allowed);
    if (sched_setaffinity(0, sizeof allowed, &allowed) != 0) return {};
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  }
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE && cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

bool pin(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

// False if the other thread has ended. Yields eventually, because others may want the core too.
bool await(const std::atomic<int>& flag, int value, const Flags& flags) {
  for (int spins = 0; flag.load(std::memory_order_acquire) != value; ++spins) {
    if (flags.over.load(std::memory_order_relaxed)) return false;
    if (spins > 20000) std::this_thread::yield();
  }
  return true;
}

void answer(Flags& flags, int core) {
  if (!pin(core)) flags.over = true;
  for (int trip = 1; await(flags.ping, trip, flags); ++trip)
    flags.pong.store(trip, std::memory_order_release);
}

std::vector<double> time_runs(Flags& flags) {
  std::vector<double> times;
  const auto begin = Clock::now();
  int trip = 0;
  while (static_cast<int>(times.size()) < runs && Clock::now() - begin < limit) {
    const auto start = Clock::now();
    for (int i = 0; i < trips; ++i) {
      flags.ping.store(++trip, std::memory_order_release);
      if (!await(flags.pong, trip, flags)) return times;
    }
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / trips / 2);
  }
  return times;
}

std::optional<double> probe_from_here() {
  const std::vector<int> cores = two_cores();
  if (cores.size() < 2 || !pin(cores[0])) return {};
  Flags flags;
  std::thread other = thread_without_signals([&] { answer(flags, cores[1]); });
  std::vector<double> times = time_runs(flags);
  flags.over = true;
  other.join();
  if (times.size() < 10) return {};
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

std::optional<double> probe_exchange() {
  // A thread of its own, because binding the caller's thread would outlast the probe.
  std::optional<double> result;
  thread_without_signals([&] {
    try {
      result = probe_from_here();
    } catch (const Error&) {  // it needs another one
    }
  }).join();
  return result;
}

}  // namespace ringreduce
