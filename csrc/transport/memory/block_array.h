// Memory that moves: private pages, which a fork costs nothing, and pages of a memfd, which peers of this
// host reach in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/interface/descriptor.h"
#include "transport/memory/channel.h"

namespace ringreduce {

// A range of addresses. All pages are private at first. A part that moves keeps its addresses and contents.
//
// Other threads may read a part while it moves: the system replaces the mapping of a page as a whole, and
// both hold the same bytes. What they write meanwhile can be lost. Parts begin and end on pages.
class BlockArray {
 public:
  using Address = std::uintptr_t;

  // Zeroed; pages are taken when they are touched. A multiple of huge pages. Throws std::bad_alloc.
  explicit BlockArray(std::size_t bytes);
  BlockArray(const BlockArray&) = delete;
  ~BlockArray();

  Address start() const { return start_; }
  std::size_t bytes() const { return bytes_; }

  // Moves a part to the memfd, or only the addresses if its contents do not matter. Returns false, and the
  // part is private, if the system has no memory that others can open.
  bool share(Address part, std::size_t bytes, bool with_contents);
  // Moves it back. Without memory for a copy, it stays a private view of the memfd.
  void make_private(Address part, std::size_t bytes);
  // Gives the pages back. Returns whether the part is private now, and reads as zero.
  bool drop(Address part, std::size_t bytes, bool shared);
  // The same without giving back shared pages, which are the parent's of a forked child.
  bool leave(Address part, std::size_t bytes);

  // Of an address in a shared part.
  Location locate(Address address) const { return {address - start_, file_.get(), number_}; }

  // In a forked child, when no part is shared any more: the memfd is the parent's.
  void forget_file() { file_.reset(); }

 private:
  bool open_file();
  bool move(Address part, std::size_t bytes, bool with_contents);  // within a huge page
  std::vector<bool>::iterator huge_at(Address address) {
    return huge_.begin() + static_cast<std::ptrdiff_t>((address - start_) / huge_page);
  }

  Address start_ = 0;
  std::size_t bytes_;
  Descriptor file_;
  std::uint32_t number_ = 0;
  std::vector<bool> huge_;  // the huge pages that the memfd has been asked for
};

}  // namespace ringreduce
