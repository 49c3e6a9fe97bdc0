#include "gpu/runner/whereabouts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "transport/interface/errors.h"
#include "transport/tcp/secret.h"

namespace ringreduce {
namespace {

constexpr int queues_by_default = 8;

int queues() {
  const char* const set = std::getenv(queues_variable);
  const int number = set ? std::atoi(set) : 0;
  return number > 0 ? number : queues_by_default;
}

}  // namespace

std::array<char, 16> this_process() {
  static const std::string bytes = random_bytes(16);
  static const pid_t pid = getpid();
  std::array<char, 16> id{};
  std::memcpy(id.data(), bytes.data(), id.size());
  // A fork's child differs.
  const std::int32_t difference = getpid() - pid;
  for (std::size_t i = 0; i < sizeof difference; ++i) id[i] ^= static_cast<char>(difference >> (8 * i));
  return id;
}

Whereabouts whereabouts_of(const CudaLibrary& cuda, int device) {
  Whereabouts where{};
  where.process = this_process();
  CudaLibrary::check(cuda.identify_device(where.gpu.data(), device));
  where.queues = queues();
  return where;
}

void check_queues(const std::vector<Whereabouts>& of_ranks) {
  for (const Whereabouts& one : of_ranks) {
    const auto here = std::ranges::count_if(of_ranks, [&](const Whereabouts& other) {
      return other.process == one.process && other.gpu == one.gpu;
    });
    if (here == 1 || streams_of_a_rank * here <= one.queues) continue;
    throw Error(
        std::to_string(here) + " ranks of one process share a GPU. They need " +
        std::to_string(streams_of_a_rank * here) + " of its queues, " + std::to_string(streams_of_a_rank) +
        " each, and the process has " + std::to_string(one.queues) + ": set " + queues_variable +
        " before the process uses CUDA, start more processes, use fewer ranks for each GPU" + or_nccl);
  }
}

}  // namespace ringreduce
