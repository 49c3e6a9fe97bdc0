// Where MappedTransport puts the payloads that it copies: an arena of each lane, and which part of it.
#include <sys/mman.h>

#include <algorithm>

#include "transport/memory/lines.h"
#include "transport/memory/mapped.h"
#include "transport/memory/pages.h"

namespace ringreduce {
namespace {

// A line that a peer's cache still has takes longer to overwrite than one that has left it, unless this core
// overwrites lines without fetching them. So payloads of two ranks go round in twice a core's second-level
// cache, but for the shortest, whose lines had better be in this core's own.
constexpr std::size_t shortest_payload = 2 << 10, short_payload = 4 << 10, shortest_if_fetched = 1 << 10;
// The bytes at the front of an arena in which they stay.
constexpr std::size_t shortest_part = 16 << 10, short_part = 64 << 10;
// Those of longer payloads that peers answer, or of more than 2 ranks.
constexpr std::size_t long_part = 256 << 10;
// Where up to so many ranks share cores, one that only sends or only receives gives its core away when the
// arena is full or empty, so twice the room halves the switches. More ranks then use more memory than the
// cores' caches hold.
constexpr int few_ranks = 4;
constexpr std::size_t one_way_part = 512 << 10;
// Those of all other payloads, until so many bytes have gone through the arena.
constexpr std::size_t first_part = 512 << 10, beyond_first_from = 8 << 20;
// Longer payloads stay in longest_part, because even few of them would fill the cache that cores share.
constexpr std::size_t longest_round = 128 << 10;
constexpr std::size_t longest_expected = 8 << 10;

#ifndef MADV_POPULATE_READ  // Linux 5.14; glibc 2.35
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

// Maps the first pages of an arena at once, of which `populated` bytes are mapped. Otherwise every call of
// the first lap takes page faults. Fails on older kernels, which does no harm. Then fetches what the first
// lap would wait for: the writer its new lines, the reader the translations of its new pages.
void populate(std::byte* arena, std::size_t bytes, std::size_t& populated, bool writable) {
  if (bytes <= populated) [[likely]]
    return;
  madvise(arena, bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  if (writable) {
    for (std::size_t at = populated; at < bytes; at += cache_line) {
      static_cast<void>(*static_cast<volatile const std::byte*>(arena + at));
    }
  } else {  // not by reading: the writer may be writing
    for (std::size_t at = populated; at < bytes; at += page) __builtin_prefetch(arena + at);
  }
  populated = bytes;
}

}  // namespace

// At most 32 MiB for a group of eight ranks, over all lanes of all ranks.
std::size_t MappedTransport::capacity_for(int world) {
  if (world <= 2) return std::size_t{2} << 20;
  if (world <= 4) return std::size_t{1} << 20;
  if (world <= 8) return std::size_t{3} << 18;
  return std::size_t{1} << 18;
}

// The start of the oldest payload that a peer may still read, or the arena's head if there is none.
std::uint64_t MappedTransport::oldest_payload(int lane) {
  std::uint64_t oldest = std::min(arenas_[lane].head, arenas_[lane].kept);
  for (int peer = 0; peer < world; ++peer) {
    Out& o = out(lane, peer);
    if (o.sent == o.known) continue;
    o.known = o.acknowledged->load(order::room_seen);
    for (std::uint32_t n = o.known; n != o.sent; ++n) {
      const std::uint64_t start = o.arena_start[n & o.mask];
      if (start == nothing) continue;
      oldest = std::min(oldest, start);
      break;  // later payloads of the same peer lie behind it
    }
  }
  return oldest;
}

// The peer that has yet to read a lane's payload, or -1.
int MappedTransport::reader_of(int lane, std::uint64_t payload) const {
  for (int peer = 0; peer < world; ++peer) {
    const Out& o = out(lane, peer);
    for (std::uint32_t n = o.known; n != o.sent; ++n) {
      if (o.arena_start[n & o.mask] == payload) return peer;
    }
  }
  return -1;
}

int MappedTransport::in_the_way(int lane, Peers peers) {
  const auto full =
      std::find_if(peers.begin(), peers.end(), [&](int peer) { return !has_slot(out(lane, peer)); });
  if (full != peers.end()) return *full;
  const int reader = reader_of(lane, oldest_payload(lane));
  return reader >= 0 ? reader : peers[0];
}

// The bytes at an arena's front that payloads of this length use again and again. `at_first`: see first_part.
std::size_t MappedTransport::part_for(int lane, std::size_t bytes, bool at_first) const {
  if (bytes <= (fetches_ ? shortest_if_fetched : shortest_payload)) return shortest_part;
  if (bytes <= short_payload && !fetches_) return short_part;
  const Arena& arena = arenas_[lane];
  if (arena.traffic == Traffic::answered) return std::min(long_part, arena.capacity);
  if (world > 2) {
    const bool one_way = arena.traffic == Traffic::inbound || arena.traffic == Traffic::outbound;
    return std::min(one_way && world <= few_ranks ? one_way_part : long_part, arena.capacity);
  }
  return at_first ? std::min(first_part, arena.capacity) : round_for(arena, bytes);
}

// The bytes of an arena that payloads of this length go round in.
std::size_t MappedTransport::round_for(const Arena& arena, std::size_t bytes) const {
  return fetches_ && bytes <= longest_round ? arena.capacity : std::min(longest_part, arena.capacity);
}

std::byte* MappedTransport::reserve(int lane, Peers peers, std::size_t bytes) {
  if (!has_slots(lane, peers)) return nullptr;
  Arena& arena = arenas_[lane];
  if (bytes <= inline_bytes) return arena.small;
  const std::size_t need = SegmentLayout::align(bytes);
  const std::size_t part = part_for(lane, need, arena.head < beyond_first_from);
  populate(arena.base, part, arena.populated, true);
  std::uint64_t start = arena.head;
  const std::size_t place = start % arena.capacity;
  if (place + need > round_for(arena, need)) start += arena.capacity - place;  // a payload does not wrap
  // Short payloads stay at the front, in memory that is in cache. Long ones are faster where no peer has read
  // lately, unless those of many ranks then go round in more memory than the cores' common cache holds.
  //
  // A call's first payload goes to the front although peers have yet to read others behind it. These are of
  // earlier calls, and are read whatever this call does. A later payload must not: behind it may lie some of
  // its own round, which no peer reads before it has sent its own, and the rest of the round would not fit.
  const bool first = arena.head == arena.begun;
  const bool leaves =
      first ? start % arena.capacity + need > part : (start + need - 1) / part != (arena.head - 1) / part;
  if (leaves || start + need - arena.tail > arena.capacity) {
    arena.tail = oldest_payload(lane);
    const std::uint64_t front = SegmentLayout::align(arena.head, arena.capacity);
    if (arena.tail == arena.head) arena.tail = front;
    if ((first || arena.tail == front) && front + need - arena.tail <= arena.capacity) start = front;
    if (start + need - arena.tail > arena.capacity) return nullptr;
  }
  arena.head = start;
  return arena.base + start % arena.capacity;
}

void MappedTransport::expect_to_send(int lane, std::size_t bytes) {
  Arena& arena = arenas_[lane];
  const std::size_t longest = fetches_ ? shortest_if_fetched : longest_expected;
  if (arena.expected == arena.head || bytes > longest) return;
  arena.expected = arena.head;
  const std::uint64_t next = arena.head % arena.capacity;
  claim(arena.base + (next + bytes > part_for(lane, bytes, true) ? 0 : next), bytes);
}

void MappedTransport::map_payload(In& from, int lane, const Slot& slot) {
  populate(from.arena, part_for(lane, slot.bytes, slot.arena + slot.bytes <= first_part), from.populated,
           false);
}

}  // namespace ringreduce
