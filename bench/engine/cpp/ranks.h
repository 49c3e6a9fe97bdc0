// Forked rank processes for the C++ benchmarks, which meet in an anonymous mapping. It also provides the
// exchange that the engine's bootstrap needs.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../peers/protocol.h"
#include "transport/interface/transport.h"

namespace bench {

struct Meeting {
  pr_shared shared;
  char blobs[PR_MAX_RANKS][512];
  std::size_t sizes[PR_MAX_RANKS];
};

inline Meeting* make_meeting() {
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Meeting*>(memory);
}

// Forks the ranks, and returns this process's rank. Each rank starts the next one, and waits for it at the
// end.
inline int fork_ranks(int ranks) {
  int rank = 0;
  while (rank + 1 < ranks && fork() == 0) ++rank;
  return rank;
}

inline int join_ranks(int rank, int ranks) {
  int status = 0;
  if (rank + 1 < ranks) wait(&status);
  return status != 0;
}

inline ringreduce::Exchange exchange_of(Meeting* meeting, const pr_world& world) {
  return [meeting, world](const std::string& blob) {
    if (blob.size() > sizeof meeting->blobs[0]) std::abort();
    std::memcpy(meeting->blobs[world.rank], blob.data(), blob.size());
    meeting->sizes[world.rank] = blob.size();
    pr_barrier(&world);
    std::vector<std::string> blobs;
    for (int rank = 0; rank < world.ranks; ++rank)
      blobs.emplace_back(meeting->blobs[rank], meeting->sizes[rank]);
    pr_barrier(&world);
    return blobs;
  };
}

}  // namespace bench
