#include "transport/interface/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <fstream>
#include <string>

namespace ringreduce {

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit) {
  timespec timeout{limit.count() / 1000000, limit.count() % 1000000 * 1000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Cores usable_cores() {
  Cores cores;
  if (sched_getaffinity(0, sizeof cores.allowed, reinterpret_cast<cpu_set_t*>(cores.allowed)) != 0) {
    cores.allowed[0] = 1;
  }
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) {
    cores.quota = std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period)));
  }
  return cores;
}

int Cores::count() const {
  int cores = 0;
  for (const std::uint64_t word : allowed) cores += std::popcount(word);
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(cores, 1);
}

void Cores::add(const Cores& other) {
  for (int i = 0; i < words; ++i) allowed[i] |= other.allowed[i];
  if (other.quota > 0) quota = quota > 0 ? std::min(quota, other.quota) : other.quota;
}

}  // namespace ringreduce
