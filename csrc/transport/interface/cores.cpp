#include "transport/interface/cores.h"

#include <sched.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "transport/interface/environment.h"

namespace ringreduce {
namespace {

constexpr int most_cores = 1 << 15;  // that the kernel is asked for; it refuses if it may have more

void allow(Cores& cores, int core) {
  cores.allowed[core / 64 % Cores::words] |= std::uint64_t{1} << core % 64;
}

// Reads a list such as "0-3,8".
std::vector<int> numbers_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> numbers;
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') file.ignore() >> last;
    while (first <= std::min(last, most_cores)) numbers.push_back(first++);
    file.ignore();
  }
  return numbers;
}

// What a control group allows, in cores; 0: any number.
int quota_of(const std::string& folder) {
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.max") >> quota >> period)) {  // not "max"
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period))) : 0;
}

// The least quota of the groups that this process is in. A container may see its own group as the root, or
// the path that its host has for it, which does not exist here.
int quota_of_process(const std::string& root) {
  int least = 0;
  const auto look = [&](const std::string& mount, std::string path) {
    while (true) {
      const int quota = quota_of(root + "/sys/fs/cgroup" + mount + path);
      if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
      if (path.empty()) return;
      path.resize(std::min(path.rfind('/'), path.size() - 1));
    }
  };
  look("", "");
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    std::istringstream parts(line);
    std::string number, controllers, path;
    std::getline(std::getline(std::getline(parts, number, ':'), controllers, ':'), path);
    if (controllers.empty()) {
      look("", path);
      look("/unified", path);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      look("/" + controllers, path);
      look("/cpu", path);
    }
  }
  return least;
}

}  // namespace

std::string described_host() {
  return environment("RINGREDUCE_TEST_SYSTEM");
}

Cores usable_cores() {
  Cores cores;
  const std::string root = described_host();
  std::vector<std::uint64_t> mask(most_cores / 64);
  if (!root.empty()) {
    for (const int core : numbers_in(root + "/sys/devices/system/cpu/online")) allow(cores, core);
  } else if (sched_getaffinity(0, most_cores / 8, reinterpret_cast<cpu_set_t*>(mask.data())) == 0) {
    for (std::size_t i = 0; i < mask.size(); ++i) cores.allowed[i % Cores::words] |= mask[i];
  } else {
    allow(cores, 0);
  }
  cores.quota = quota_of_process(root);
  return cores;
}

int cores_of_host() {
  const std::string root = described_host();
  const std::size_t online = root.empty() ? static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN))
                                          : numbers_in(root + "/sys/devices/system/cpu/online").size();
  const int quota = quota_of_process(root);
  return quota > 0 ? std::min(static_cast<int>(online), quota) : static_cast<int>(online);
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
