#include "transport/memory/mapped.h"

#include <algorithm>
#include <cstring>

#include "reduce/string_copy.h"
#include "transport/interface/wait.h"
#include "transport/memory/lines.h"

namespace ringreduce {
namespace {

// Where no rank answers, a sender runs ahead, and a call takes as long as one line takes from core to core.
// Lines that are asked for before they are needed come several at a time: the sender's slots and short
// payloads, so many messages ahead, and the receiver's next payload.
constexpr std::uint32_t slots_ahead = 3;
constexpr std::size_t payloads_ahead = 2, longest_claimed_ahead = 512, longest_fetched_ahead = 1 << 10;
constexpr int turns_before_sleep = 2;  // ranks of a core that take their turns before a waiting one sleeps

void read_sample(const RewrittenSample& sample) {
  for (std::size_t at = 0; at < sample.bytes.size(); at += cache_line) {
    static_cast<void>(*static_cast<const volatile std::byte*>(&sample.bytes[at]));
  }
}

}  // namespace

MappedTransport::MappedTransport(const char* name, int rank, int world, std::vector<Segment> segments,
                                 int cores, std::vector<int> names)
    : Transport(rank, world,
                {.name = name,
                 .oversubscribed = world > cores,
                 .shared_cores = world > cores ? cores : 0,
                 .capacity = std::min(capacity_for(world), longest_part),
                 .broadcast_slots = true}),
      layout_(world, capacity_for(world)),
      segments_(std::move(segments)),
      outs_(static_cast<std::size_t>(world) * lanes),
      ins_(static_cast<std::size_t>(world) * lanes),
      arenas_(lanes),
      fetches_(!string_copy::pays()),
      spins_(facts_.oversubscribed ? 0 : 4000),
      patience_(std::max(1, world / std::max(cores, 1) / turns_before_sleep)),
      names_(std::move(names)) {
  for (int lane = 0; lane < lanes; ++lane) {
    arenas_[lane].base = layout_.arena_of(segments_[rank].get(), lane);
    arenas_[lane].capacity = layout_.capacity_of(lane);
    for (int peer = 0; peer < world; ++peer) {
      std::byte* theirs = segments_[peer].get();
      Out& o = out(lane, peer);
      In& i = in(lane, peer);
      o.mask = i.mask = layout_.depth_of(lane) - 1;
      o.slots = layout_.slots_to(segments_[rank].get(), peer, lane);
      o.acknowledged = &layout_.acks_of(theirs, rank).consumed[lane];
      i.slots = layout_.slots_to(theirs, rank, lane);
      i.acknowledge = &layout_.acks_of(segments_[rank].get(), peer).consumed[lane];
      i.arena = layout_.arena_of(theirs, lane);
    }
  }
}

bool MappedTransport::has_slot(Out& o) {
  if (o.sent - o.known <= o.mask) return true;
  o.known = o.acknowledged->load(order::room_seen);
  return o.sent - o.known <= o.mask;
}

bool MappedTransport::has_slots(int lane, Peers peers) {
  return std::all_of(peers.begin(), peers.end(), [&](int peer) { return has_slot(out(lane, peer)); });
}

template <typename Fill>
void MappedTransport::publish(int lane, Peers peers, SlotKind kind, std::size_t bytes, std::uint64_t contract,
                              std::uint64_t arena_start, Fill fill) {
  for (int peer : peers) {
    Out& o = out(lane, peer);
    const std::uint32_t index = o.sent & o.mask;
    Slot& slot = o.slots[index];
    slot.bytes = static_cast<std::uint32_t>(bytes);
    slot.contract = contract;
    slot.kind = kind;
    fill(slot);
    o.arena_start[index] = arena_start;
    slot.sequence.store(++o.sent, order::message_written);
    __builtin_prefetch(&o.slots[(o.sent + slots_ahead) & o.mask], 1);
    ring(peer);
  }
}

bool MappedTransport::send(int lane, Peers peers, const void* data, std::size_t bytes,
                           std::uint64_t contract) {
  if (bytes > inline_bytes) {
    std::byte* room = reserve(lane, peers, bytes);
    if (!room) return false;
    claim(room, bytes);
    std::memcpy(room, data, bytes);
    post(lane, peers, room, bytes, contract);
    return true;
  }
  if (!has_slots(lane, peers)) return false;
  publish(lane, peers, SlotKind::inlined, bytes, contract, nothing,
          [&](Slot& slot) { copy_small(slot.inlined, static_cast<const std::byte*>(data), bytes); });
  return true;
}

void MappedTransport::post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
                           std::uint64_t contract) {
  if (bytes <= inline_bytes) {
    return publish(lane, peers, SlotKind::inlined, bytes, contract, nothing,
                   [&](Slot& slot) { std::memcpy(slot.inlined, reserved, inline_bytes); });
  }
  Arena& arena = arenas_[lane];
  const std::uint64_t start = arena.head;
  arena.head += SegmentLayout::align(bytes);
  const bool granted = arena.traffic == Traffic::answered && peers.size() == 1;
  if (granted) arena.kept = std::min(arena.kept, start);
  publish(lane, peers, granted ? SlotKind::staged_with_grant : SlotKind::staged, bytes, contract, start,
          [&](Slot& slot) { slot.arena = start % arena.capacity; });
  if (bytes <= longest_claimed_ahead) {
    const std::size_t part = part_for(lane, bytes, true);
    fetch<1>(arena.base + (arena.head + payloads_ahead * SegmentLayout::align(bytes)) % part, bytes);
  }
}

bool MappedTransport::lend(int lane, Peers peers, const std::byte* data, std::size_t bytes,
                           std::uint64_t contract, std::byte* grant) {
  if (!has_slots(lane, peers)) return false;
  if (!data) {
    for (int peer : peers) {
      const std::uint64_t place = in(lane, peer).granted;
      publish(lane, {&peer, 1}, place == nothing ? SlotKind::delivered : SlotKind::answered, bytes, contract,
              nothing, [&](Slot& slot) { slot.arena = place; });
    }
    return true;
  }
  const Location place = locate(data, bytes).value();
  const auto granted = grant ? locate(grant, bytes) : std::nullopt;
  // Lines that several peers read would wander between them.
  const bool one_reader = peers.size() == 1 && can_be_taken();
  const bool sample = one_reader && samples_rewriting(lane, peers.front());
  const Take take = one_reader ? out(lane, peers.front()).rewriting.take() : Take::none;
  publish(lane, peers, granted ? SlotKind::lent_with_grant : SlotKind::lent, bytes, contract, nothing,
          [&](Slot& slot) {
            slot.take = take;
            slot.sample = sample;
            slot.lent = {place, granted.value_or(Location())};
          });
  return true;
}

// Whether the peer should read the sample of the lane with the next message.
bool MappedTransport::samples_rewriting(int lane, int peer) {
  Out& o = out(lane, peer);
  RewrittenSample& sample = layout_.sample_of(segments_[rank].get(), peer);
  if (o.sample_asked != 0) {
    if (!consumed(lane, peer, o.sample_asked)) return false;
    o.rewriting.measure(sample);
    o.sample_asked = 0;
  }
  if (!o.rewriting.due(sample)) return false;
  o.sample_asked = std::max(o.sent + 1, 1U);
  return true;
}

bool MappedTransport::consumed(int lane, int peer, std::uint32_t sent) {
  Out& o = out(lane, peer);
  if (static_cast<std::int32_t>(o.known - sent) >= 0) return true;
  o.known = o.acknowledged->load(order::room_seen);
  return static_cast<std::int32_t>(o.known - sent) >= 0;
}

bool MappedTransport::poll(int lane, int peer, Message& message) {
  In& i = in(lane, peer);
  const Slot& slot = i.slots[i.received & i.mask];
  if (slot.sequence.load(order::message_seen) != i.received + 1) return false;
  message.bytes = slot.bytes;
  message.contract = slot.contract;
  message.delivered = slot.kind == SlotKind::delivered;
  message.grant = nullptr;
  switch (slot.kind) {
    case SlotKind::inlined:
      message.data = slot.inlined;
      break;
    case SlotKind::answered:
      message.data = arenas_[lane].base + slot.arena;
      break;
    case SlotKind::staged:
    case SlotKind::staged_with_grant:
      message.data = i.arena + slot.arena;
      map_payload(i, lane, slot);
      if (arenas_[lane].traffic == Traffic::inbound && slot.bytes <= longest_fetched_ahead) {
        fetch<0>(message.data + SegmentLayout::align(slot.bytes), slot.bytes);
      }
      if (slot.kind == SlotKind::staged) break;
      message.grant = i.arena + slot.arena;
      i.granted = slot.arena;
      break;
    case SlotKind::lent_with_grant:
      message.grant = resolve(peer, slot.lent.grant);
      i.granted = nothing;
      [[fallthrough]];
    case SlotKind::lent:
      message.data = resolve(peer, slot.lent.place);
      message.take = slot.take;
      if (slot.sample) read_sample(layout_.sample_of(segments_[peer].get(), rank));
      break;
    case SlotKind::delivered:
      message.data = nullptr;
      break;
  }
  return true;
}

void MappedTransport::release(int lane, int peer) {
  In& i = in(lane, peer);
  i.acknowledge->store(++i.received, order::message_read);
  // A sender that is ahead has written the next message, whose way to this core is long.
  __builtin_prefetch(&i.slots[i.received & i.mask]);
  ring(peer);
}

void MappedTransport::fill_broadcast_slot(const void* data, std::size_t bytes, std::uint64_t contract) {
  Slot& slot = layout_.told_by(segments_[0].get(), rank, ++told_);
  slot.bytes = static_cast<std::uint32_t>(bytes);
  slot.contract = contract;
  copy_small(slot.inlined, static_cast<const std::byte*>(data), bytes);
  slot.sequence.store(told_, order::message_written);
  for (int peer = 0; peer < world; ++peer) ring(peer);
}

bool MappedTransport::read_broadcast_slot(int peer, Message& message) {
  const Slot& slot = layout_.told_by(segments_[0].get(), peer, told_);
  if (slot.sequence.load(order::message_seen) != told_) return false;
  message.data = slot.inlined;
  message.bytes = slot.bytes;
  message.contract = slot.contract;
  return true;
}

int MappedTransport::read_broadcast_slots(Peers peers, int first, std::size_t bytes, std::uint64_t contract,
                                          const void** places) {
  const Slot* const told = &layout_.told_by(segments_[0].get(), 0, told_);
  int k = first;
  for (; k < static_cast<int>(peers.size()) && peers[k] >= 0; ++k) {
    const Slot& slot = told[peers[k]];
    if (slot.sequence.load(order::message_seen) != told_ || slot.bytes != bytes ||
        slot.contract != contract) {
      break;
    }
    places[k] = slot.inlined;
  }
  // When all have written, all have read what this rank wrote in the slot that is next.
  if (k == static_cast<int>(peers.size())) {
    __builtin_prefetch(&layout_.told_by(segments_[0].get(), rank, told_ + 1), 1);
  }
  return k;
}

// The waker looks at `sleepers` without a fence after its store. If the store is still in flight when the
// sleeper looks for the last time, the wake-up is missed, and the short limit of the sleep compensates for
// it. A fence would cost every message what almost none needs.
void MappedTransport::ring(int peer) {
  Doorbell& bell = doorbell(peer);
  if (bell.sleepers.load(order::sleepers_seen) != 0) [[unlikely]] {
    bell.rung.fetch_add(1, order::rung);
    futex_wake(bell.rung);
  }
}

void MappedTransport::record(const Record& record) {
  Header& own = header(rank);
  const std::uint32_t next = own.record_next.load(order::relaxed);
  const std::uint32_t place = next & (layout_.record_depth - 1);
  own.records[place] = record;
  own.histories[place].store(record.history, order::history_written);
  own.record_next.store(next + 1, order::call_recorded);
}

std::vector<Record> MappedTransport::records(int of_rank) {
  const Header& theirs = header(of_rank);
  const std::uint32_t next = theirs.record_next.load(order::calls_seen);
  const std::uint32_t depth = layout_.record_depth;
  std::vector<Record> recent;
  for (std::uint32_t n = next < depth ? 0 : next - depth; n != next; ++n) {
    recent.push_back(theirs.records[n & (depth - 1)]);
  }
  return recent;
}

}  // namespace ringreduce
