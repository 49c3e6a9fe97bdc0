#include "transport/memory/block_map.h"

#include <algorithm>
#include <iterator>

#include "transport/memory/pages.h"

namespace ringreduce::block_pool {
namespace {

// Where a block of that size begins in a free one. Large blocks begin with a huge page.
Address beginning(Address start, std::size_t wanted) {
  return wanted < huge_page ? start : (start + huge_page - 1) / huge_page * huge_page;
}

}  // namespace

void BlockMap::list(Place block) {
  const auto& [start, b] = *block;
  free(b.state).insert({b.bytes, start});
  if (b.state == State::fresh) return;
  if (b.bytes >= huge_page) large_.insert({b.freed, start});
  resting_ += b.bytes;
}

void BlockMap::unlist(Place block) {
  const auto& [start, b] = *block;
  free(b.state).erase({b.bytes, start});
  if (b.state == State::fresh) return;
  large_.erase({b.freed, start});
  resting_ -= b.bytes;
}

BlockMap::Place BlockMap::holder(Address address) {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return none();
  const auto block = std::prev(after);
  return address < block->first + block->second.bytes ? block : none();
}

BlockMap::Place BlockMap::add(Address start, const Block& block) {
  return rest(blocks_.emplace(start, block).first);
}

BlockMap::Place BlockMap::fitting(State state, std::size_t wanted) {
  constexpr int most_looks = 16;
  const Free& candidates = free(state);
  auto at = candidates.lower_bound({wanted, 0});
  for (int looks = 0; at != candidates.end() && looks < most_looks; ++at, ++looks) {
    if (beginning(at->second, wanted) + wanted <= at->second + at->first) return blocks_.find(at->second);
  }
  at = candidates.lower_bound({wanted + huge_page, 0});
  return at == candidates.end() ? none() : blocks_.find(at->second);
}

BlockMap::Place BlockMap::take(Place block, std::size_t wanted) {
  unlist(block);
  const Address start = block->first;
  const Block whole = block->second;
  const Address first = beginning(start, wanted), behind = first + wanted, end = start + whole.bytes;
  const auto part = [&](std::size_t bytes) {
    Block like = whole;
    like.bytes = bytes;
    return like;
  };
  if (behind < end) add(behind, part(end - behind));
  if (first > start) {
    blocks_.erase(block);
    add(start, part(first - start));
    return blocks_.emplace(first, part(wanted)).first;
  }
  block->second.bytes = wanted;
  return block;
}

BlockMap::Place BlockMap::rest(Place block) {
  const auto joins = [](const auto& first, const auto& second) {
    const Block &a = first.second, &b = second.second;
    return a.free() && b.free() && a.array == b.array && a.state == b.state &&
           first.first + a.bytes == second.first;
  };
  const auto absorb = [&](Place first, Place second) {
    first->second.bytes += second->second.bytes;
    first->second.uses = std::max(first->second.uses, second->second.uses);
    first->second.freed = std::max(first->second.freed, second->second.freed);
    blocks_.erase(second);
  };
  if (!block->second.free()) block->second.freed = ++freed_;
  block->second.asked = 0;
  if (const auto next = std::next(block); next != none() && joins(*block, *next)) {
    unlist(next);
    absorb(block, next);
  }
  if (block != blocks_.begin()) {
    if (const auto before = std::prev(block); joins(*before, *block)) {
      unlist(before);
      absorb(before, block);
      block = before;
    }
  }
  list(block);
  return block;
}

void BlockMap::forget(Place block) {
  unlist(block);
  blocks_.erase(block);
}

// A smaller block is part of a huge page, which would be divided, also for those who use the rest.
BlockMap::Place BlockMap::dispensable() {
  if (!large_.empty()) return blocks_.find(large_.begin()->second);
  const Free &own = free(State::own), &shared = free(State::shared);
  const bool is_own = shared.empty() || (!own.empty() && own.rbegin()->first >= shared.rbegin()->first);
  return blocks_.find((is_own ? own : shared).rbegin()->second);
}

}  // namespace ringreduce::block_pool
