// How messages lie in memory that sender and receiver share: one segment per rank, written by its owner
// (except for the abort word, the doorbell and Busy) and read by all. Every atomic is lock-free and
// address-free, so the layout serves threads and processes alike.
//
//   Header | doorbells[world] | told[2][world] | slots[lanes][world][depth] | acks[world] | samples[world] |
//   arena[lanes][capacity]
//
// A message from a to b on a lane is one 64-byte slot in a's segment. Up to 40 bytes travel inside it, in the
// cache line that carries the flag. Longer messages lie in a's arena (once, for all readers) or in a lent
// buffer. b's acknowledgement is a counter in b's segment, which a reads only when it runs out of space.
//
// What a rank tells all others is one slot in the first rank's segment, where those of all ranks lie side by
// side. There are two per rank: a rank that tells for the third time has heard everyone's second message, so
// everyone has finished with its first.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/interface/board.h"
#include "transport/interface/record.h"
#include "transport/interface/transport.h"
#include "transport/memory/rewriting.h"

namespace ringreduce {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t inline_bytes = Transport::broadcast_slot_bytes;
inline constexpr std::uint32_t most_records = 256;
inline constexpr int cores_told = 64;        // cores whose numbers are equal modulo this share a Busy
inline constexpr int most_surviving = 1024;  // the most ranks that an agreement on survivors supports

// One rank's segment, as mapped here.
using Segment = std::shared_ptr<std::byte>;

struct Location {  // memory of a rank that its peers can reach
  std::uint64_t offset = 0;
  std::int32_t fd = 0;      // of its array, if ranks are processes
  std::uint32_t array = 0;  // distinguishes arrays that have had the same descriptor
};

// `answered`: the message lies where the receiver had staged the one that it answers.
enum class SlotKind : std::uint8_t {
  inlined,
  staged,
  staged_with_grant,
  answered,
  lent,
  lent_with_grant,
  delivered
};

struct alignas(cache_line) Slot {
  std::atomic<std::uint32_t> sequence;  // the message's number, from 1: the flag, written last
  std::uint32_t bytes;
  std::uint64_t contract;
  SlotKind kind;
  Take take;    // of lent memory
  bool sample;  // of lent memory: the reader should read the sample of Rewriting
  union {
    std::byte inlined[inline_bytes];
    std::uint64_t arena;  // staged: offset in the sender's lane arena; answered: in the receiver's
    struct {
      Location place, grant;
    } lent;
  };
};
static_assert(sizeof(Slot) == cache_line);

struct alignas(cache_line) Acks {
  std::atomic<std::uint32_t> consumed[Transport::lanes];  // messages of one peer that the owner has read
};

// Senders read the first line with every message, so ranks that do not sleep hardly write it. The first
// rank's segment holds those of all ranks: a sender to many peers would otherwise need a page of each.
struct alignas(cache_line) Doorbell {
  std::atomic<std::uint32_t> rung;
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::int32_t> waiting_for;  // a rank, or -1; and when the owner last set it
  std::atomic<Clock::time_point> said;
  alignas(cache_line) std::atomic<std::int32_t> core;  // where the owner ran when it last waited
  std::atomic<bool> away;                              // the owner has yielded its core and not returned
};

// The time in ns that the group's ranks ran on a core before they yielded it. The first rank's segment holds
// the counts of all cores.
struct alignas(cache_line) Busy {
  std::atomic<std::int64_t> ran;
};

// A rank's Board, packed: a sequence lock (odd while it is written, 0 before the first time) and its words.
struct alignas(cache_line) SharedBoard {
  static constexpr std::size_t most_words = (16 + most_surviving / 8 + longest_blob) / 8;
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> bytes;
  std::atomic<std::uint64_t> words[most_words];
};

struct alignas(cache_line) Header {
  std::uint64_t nonce;                                     // proves that the right memory was opened
  alignas(cache_line) std::atomic<std::uint64_t> aborted;  // cause, culprit, reporter; any rank may write it
  std::atomic<std::uint32_t> accesses;                     // that the owner has begun and not ended
  alignas(cache_line) std::atomic<std::uint32_t> closed;
  alignas(cache_line) std::atomic<std::uint32_t> record_next;
  std::atomic<std::uint64_t> histories[most_records];  // of the records; waiting peers compare them
  Record records[most_records];
  char reason[2048];  // why the owner aborted the others
  SharedBoard board;
  Busy busy[cores_told];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Where the parts of any rank's segment are.
struct SegmentLayout {
  SegmentLayout(int world, std::size_t capacity)
      : world(world),
        capacity(capacity),
        doorbells(align(sizeof(Header))),
        told(doorbells + sizeof(Doorbell) * world),
        slots(told + sizeof(Slot) * 2 * world),
        acks(slots + sizeof(Slot) * slots_before(Transport::lanes)),
        samples(acks + sizeof(Acks) * world),
        arena(align(samples + sizeof(RewrittenSample) * world, 4096)),
        bytes(arena + capacity * (Transport::collective_lanes + 1)),
        record_depth(world > 8 ? 16 : 2 * depth_of(0)) {}

  static constexpr std::uint32_t most_slots = 128;
  // The number of slots to one peer, a power of two: the most messages in flight to it. Small messages take
  // the first lane. Where no rank answers, as in broadcasts, it lets the sender run ahead, so that it seldom
  // waits, and ranks that share a core seldom take turns. The slots of many ranks would fill the cores'
  // caches.
  std::uint32_t depth_of(int lane) const {
    if (lane >= Transport::collective_lanes) return 16;
    if (world > 8) return 4;
    return lane == 0 ? most_slots : 16;
  }
  static std::size_t align(std::size_t n, std::size_t to = cache_line) { return (n + to - 1) / to * to; }

  Header& header(std::byte* base) const { return *reinterpret_cast<Header*>(base); }
  Doorbell& doorbell_of(std::byte* first, int rank) const {
    return reinterpret_cast<Doorbell*>(first + doorbells)[rank];
  }
  Slot& told_by(std::byte* first, int rank, std::uint32_t number) const {
    return reinterpret_cast<Slot*>(first + told)[number % 2 * world + rank];
  }
  // A lane's slots to all peers lie together, in as few pages as possible.
  Slot* slots_to(std::byte* base, int peer, int lane) const {
    return reinterpret_cast<Slot*>(base + slots) + slots_before(lane) + peer * depth_of(lane);
  }
  std::size_t slots_before(int lane) const {
    std::size_t depth = 0;
    for (int before = 0; before < lane; ++before) depth += depth_of(before);
    return depth * static_cast<std::size_t>(world);
  }
  Acks& acks_of(std::byte* base, int peer) const { return reinterpret_cast<Acks*>(base + acks)[peer]; }
  // Written by the segment's owner, and read by the peer.
  RewrittenSample& sample_of(std::byte* base, int peer) const {
    return reinterpret_cast<RewrittenSample*>(base + samples)[peer];
  }
  // The lanes of point-to-point messages share the space of one lane of the collectives. Most of it is for
  // bodies: in a small ring every line is still in the reader's cache when it is rewritten, which costs a
  // third.
  std::size_t capacity_of(int lane) const {
    if (lane == Transport::point_to_point_lane) return capacity / 4;
    return lane == Transport::body_lane ? capacity - capacity / 4 : capacity;
  }
  std::byte* arena_of(std::byte* base, int lane) const {
    std::byte* first = base + arena + capacity * std::min(lane, Transport::point_to_point_lane);
    return lane == Transport::body_lane ? first + capacity_of(Transport::point_to_point_lane) : first;
  }

  int world;
  std::size_t capacity;
  std::size_t doorbells, told, slots, acks, samples, arena, bytes;
  // The number of calls on record, a power of two. A rank that is ahead must still be known to have made the
  // calls that its peers are in.
  std::uint32_t record_depth;
};

}  // namespace ringreduce
