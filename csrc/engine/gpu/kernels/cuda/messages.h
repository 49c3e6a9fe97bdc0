// Messages between two ranks, in blocks of their own: each block walks one lane of one peer and direction, so
// messages of different peers, or in different directions, never wait for each other. The sender copies a
// slice into its own memory and posts it, and the receiver copies it from there. Two slices of each lane may
// be on their way, so a short message leaves before anybody receives it.
#pragma once

#include "engine/gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

class Carrier {
 public:
  RINGREDUCE_DEVICE Carrier(Block& block, Spans& spans, const Messages& errand)
      : block_(block), spans_(spans), errand_(errand) {}

  RINGREDUCE_DEVICE void run() {
    const int lanes = errand_.boxes.lanes;
    const int pair = block_.index() / lanes;
    for (int i = errand_.begins[pair]; i < errand_.begins[pair + 1]; ++i) {
      if (!carry(errand_.messages[i], block_.index() % lanes)) return;
    }
  }

 private:
  // What one lane does. False: given up.
  RINGREDUCE_DEVICE bool carry(const Message& message, int lane) {
    const LaneBox own(errand_.boxes, errand_.memories[errand_.rank], message.peer, lane);
    const LaneBox theirs(errand_.boxes, errand_.memories[message.peer], errand_.rank, lane);
    bool going_on = block_.leader([&] { return begin(message, lane, own); });
    // An empty message has a slice, too.
    const std::uint64_t slices = message.bytes <= message_slice ? 1 : (message.bytes - 1) / message_slice + 1;
    for (std::uint64_t s = lane; s < slices && going_on; s += errand_.boxes.lanes) {
      going_on = block_.leader([&] {
        const std::uint64_t number = *own.slices(message.sends) + 1;
        return message.sends ? find_room(message, s, number, own) : find(message, s, number, own, theirs);
      });
      if (!going_on) break;
      block_.all([&](std::size_t thread, std::size_t threads) { pass_bytes(spans_, thread, threads); });
      going_on = block_.leader([&] {
        const std::uint64_t number = ++*own.slices(message.sends);
        return message.sends ? post(message, number, theirs) : release(number, theirs);
      });
    }
    return going_on && block_.leader([&] { return end(message, lane, own); });
  }

  // After a call that was given up, no peer's memory is touched.
  RINGREDUCE_DEVICE bool begin(const Message& message, int lane, const LaneBox& own) {
    store_relaxed(&errand_.report->messages_begun[message.sends][message.peer][lane],
                  ++*own.messages(message.sends));
    const bool is_alone = exchange(own.is_in_work(message.sends), 1) == 0;
    if (load_relaxed(&errand_.report->abort) != 0) return false;
    if (!is_alone) store_relaxed(&errand_.report->overlaps, 1);
    return is_alone;
  }
  RINGREDUCE_DEVICE bool end(const Message& message, int lane, const LaneBox& own) {
    *own.is_in_work(message.sends) = 0;
    store_relaxed(&errand_.report->messages_ended[message.sends][message.peer][lane],
                  *own.messages(message.sends));
    return true;
  }

  RINGREDUCE_DEVICE bool find_room(const Message& message, std::uint64_t s, std::uint64_t number,
                                   const LaneBox& own) {
    copies(message, s, own.slice(number), true);
    const auto was_read = [&] { return load_relaxed(own.read()) + 2 >= number; };
    if (!wait_until(*errand_.report, was_read)) return false;
    fence();
    return true;
  }
  RINGREDUCE_DEVICE bool post(const Message& message, std::uint64_t number, const LaneBox& theirs) {
    store_relaxed(theirs.label(number), message.label);
    fence();
    store_relaxed(theirs.posted(number), number);
    return true;
  }

  RINGREDUCE_DEVICE bool find(const Message& message, std::uint64_t s, std::uint64_t number,
                              const LaneBox& own, const LaneBox& theirs) {
    copies(message, s, theirs.slice(number), false);
    const auto is_here = [&] { return load_relaxed(own.posted(number)) == number; };
    if (!wait_until(*errand_.report, is_here)) return false;
    fence();
    const std::uint64_t label = load_relaxed(own.label(number));
    if (label == message.label) return true;
    store_relaxed(&errand_.report->wrong_label, label);
    store_relaxed(&errand_.report->expected_label, message.label);
    fence();
    store_relaxed(&errand_.report->wrong_peer, static_cast<std::uint64_t>(message.peer) + 1);
    return false;
  }
  RINGREDUCE_DEVICE static bool release(std::uint64_t number, const LaneBox& theirs) {
    fence();
    store_relaxed(theirs.read(), number);
    return true;
  }

  // Between a slice of the message and where it lies on its way.
  RINGREDUCE_DEVICE void copies(const Message& message, std::uint64_t s, char* on_its_way, bool outwards) {
    const std::uint64_t begin = s * message_slice, rest = message.bytes - begin;
    char* const here = message.data + begin;
    spans_.source_count = spans_.destination_count = 1;
    spans_.sources[0] = outwards ? here : on_its_way;
    spans_.destinations[0] = outwards ? on_its_way : here;
    spans_.count = rest < message_slice ? rest : message_slice;
    spans_.scale = Scale{1, 1};
  }

  Block& block_;
  Spans& spans_;
  const Messages& errand_;
};

}  // namespace ringreduce::device
