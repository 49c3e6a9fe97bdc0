// Which of this process's memory has other pages than before, or none: for those who have told a device where
// the pages of an address are. Memory of our own is noted here; that of malloc is nobody's to note.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace ringreduce::page_changes {

using Address = std::uintptr_t;

// Notes memory before it is unmapped, or after its pages have been replaced. Thread-safe.
void note(const void* memory, std::size_t bytes);

// Follows the changes from its beginning on. Not thread-safe itself.
class Follower {
 public:
  Follower();
  // Whether there are changes that next() has not shown yet. One load.
  bool is_behind() const;
  // Shows them as ranges, or as one range of everything if they are too many to be remembered.
  void next(const std::function<void(Address begin, Address end)>& show);

 private:
  std::uint64_t seen_;
};

}  // namespace ringreduce::page_changes
