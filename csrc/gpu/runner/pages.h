// Memory on the host that all ranks of a group read and write, whatever processes they are in: a part for
// each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/memory/shared_heap.h"

namespace ringreduce {

class SharedPages {
 public:
  // `bytes` of a rank's part, zeroed. Throws std::bad_alloc if there is no shared memory.
  SharedPages(int rank, int world, std::size_t bytes);

  // What the other ranks pass to open(), which reaches this rank's part. It returns false if it cannot.
  std::string address() const;
  bool open(const std::vector<std::string>& addresses);
  std::byte* of(int rank) const;

 private:
  const int rank_;
  std::vector<std::shared_ptr<SharedMemory>> parts_;  // by rank
};

}  // namespace ringreduce
