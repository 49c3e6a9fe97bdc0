// Which parts of the pool's arrays are in use, and which are free.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "transport/memory/block_array.h"

namespace ringreduce::block_pool {

using Address = BlockArray::Address;

// fresh: private, without pages, reads as zero.
enum class State : std::uint8_t { fresh, own, shared };

struct Block {
  bool free() const { return asked == 0; }

  std::size_t bytes = 0;
  BlockArray* array = nullptr;
  std::size_t asked = 0;  // by the program; 0: the block is free
  State state = State::fresh;
  std::uint8_t uses = 0;    // by collectives, of this memory
  std::uint64_t freed = 0;  // when it was freed, in the order of all that were
};

// All blocks. The free ones are also in sets, from which take() and forget() remove them.
class BlockMap {
 public:
  using Blocks = std::map<Address, Block>;
  using Place = Blocks::iterator;

  Blocks& all() { return blocks_; }
  bool is_block(Place place) const { return place != blocks_.end(); }
  Place none() { return blocks_.end(); }
  // The block that the address lies in, if any.
  Place holder(Address address);

  // Adds a free block; see rest().
  Place add(Address start, const Block& block);
  // A free block of that state, in which a block of `wanted` bytes fits, and a small one of these.
  Place fitting(State state, std::size_t wanted);
  // Removes `wanted` bytes of a free block from the free ones. What is before and behind them stays free.
  Place take(Place block, std::size_t wanted);
  // Returns a block to the free ones, and joins it with its free neighbours of the same state and array.
  Place rest(Place block);
  // Removes a free block.
  void forget(Place block);
  // A free block with pages, to give them back: of those with whole huge pages the one that has not been used
  // for longest, or else the largest. There must be one.
  Place dispensable();

  std::size_t free_bytes_with_pages() const { return resting_; }

 private:
  using Free = std::set<std::pair<std::size_t, Address>>;

  Free& free(State state) { return free_[static_cast<int>(state)]; }
  void list(Place block);
  void unlist(Place block);

  Blocks blocks_;
  std::array<Free, 3> free_;
  std::set<std::pair<std::uint64_t, Address>> large_;  // free ones with pages, in their order
  std::uint64_t freed_ = 0;
  std::size_t resting_ = 0;
};

}  // namespace ringreduce::block_pool
