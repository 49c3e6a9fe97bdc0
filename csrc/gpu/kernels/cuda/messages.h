// Messages between two ranks, in blocks of their own: each block walks one lane of one peer and direction, so
// messages of different peers, or in different directions, never wait for each other. The sender copies a
// slice into its own memory and posts it, and the receiver copies it from there. Two slices of each lane may
// be in flight, so a short message leaves before it is received.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

class Carrier {
 public:
  RINGREDUCE_DEVICE Carrier(Block& block, Spans& spans, const Messages& errand)
      : block_(block), spans_(spans), errand_(errand), lane_(block.index() % errand.boxes.lanes) {}

  RINGREDUCE_DEVICE void run() {
    const int pair = block_.index() / errand_.boxes.lanes;
    for (int i = errand_.begins[pair]; i < errand_.begins[pair + 1]; ++i) {
      if (!carry(errand_.messages[i])) return;
    }
  }

 private:
  // What one lane does. False: given up.
  RINGREDUCE_DEVICE bool carry(const Message& message) {
    const LaneBox own(errand_.boxes, errand_.memories[errand_.rank], message.peer, lane_);
    const LaneBox theirs(errand_.boxes, errand_.memories[message.peer], errand_.rank, lane_);
    bool going_on = block_.leader([&] { return begin(message, own); });
    // An empty message has a slice, too.
    const std::uint64_t slices = message.bytes <= message_slice ? 1 : (message.bytes - 1) / message_slice + 1;
    for (std::uint64_t s = lane_; s < slices && going_on; s += errand_.boxes.lanes) {
      going_on = block_.leader([&] {
        const std::uint64_t number = *own.slices(message.sends) + 1;
        return message.sends ? find_room(message, s, number, own) : find(message, s, number, own, theirs);
      });
      if (!going_on) break;
      block_.all([&](std::size_t thread, std::size_t threads) { pass_bytes(spans_, thread, threads); });
      going_on = block_.leader([&] {
        const std::uint64_t number = ++*own.slices(message.sends);
        message.sends ? post(message, number, theirs) : release(number, theirs);
        if (s == static_cast<std::uint64_t>(lane_)) tell_begun(message, own);
        return true;
      });
    }
    return going_on && block_.leader([&] { return end(message, own); });
  }

  // After a call that was given up, no peer's memory is touched.
  RINGREDUCE_DEVICE bool begin(const Message& message, const LaneBox& own) {
    const bool is_alone = exchange(own.is_in_work(message.sends), 1) == 0;
    if (abort_flag(*errand_.report, block_) != 0) return false;
    if (!is_alone) {
      tell_host(&errand_.report->overlaps, 1);
    } else {
      ++*own.messages(message.sends);
    }
    return is_alone;
  }
  // Not before the peer has been told, as RankBlock::tell_begun.
  RINGREDUCE_DEVICE void tell_begun(const Message& message, const LaneBox& own) const {
    tell_host(&errand_.report->messages_begun[message.sends][message.peer][lane_],
              *own.messages(message.sends));
  }
  RINGREDUCE_DEVICE bool end(const Message& message, const LaneBox& own) const {
    tell_begun(message, own);  // a lane without slices has not yet
    *own.is_in_work(message.sends) = 0;
    tell_host(&errand_.report->messages_ended[message.sends][message.peer][lane_],
              *own.messages(message.sends));
    return true;
  }

  template <class Condition>
  RINGREDUCE_DEVICE bool wait_until(const Message& message, const LaneBox& own, Condition holds) const {
    return device::wait_until(*errand_.report, block_, holds, [&] { tell_begun(message, own); });
  }

  RINGREDUCE_DEVICE bool find_room(const Message& message, std::uint64_t s, std::uint64_t number,
                                   const LaneBox& own) {
    copies(message, s, own.slice(number), true);
    const auto was_read = [&] { return load_relaxed(own.read()) + 2 >= number; };
    if (!wait_until(message, own, was_read)) return false;
    acquire_fence();
    return true;
  }
  RINGREDUCE_DEVICE static void post(const Message& message, std::uint64_t number, const LaneBox& theirs) {
    store_relaxed(theirs.label(number), message.label);
    release_fence();
    store_relaxed(theirs.posted(number), number);
  }

  RINGREDUCE_DEVICE bool find(const Message& message, std::uint64_t s, std::uint64_t number,
                              const LaneBox& own, const LaneBox& theirs) {
    copies(message, s, theirs.slice(number), false);
    const auto is_here = [&] { return load_relaxed(own.posted(number)) == number; };
    if (!wait_until(message, own, is_here)) return false;
    acquire_fence();
    const std::uint64_t label = load_relaxed(own.label(number));
    if (label == message.label) return true;
    tell_host(&errand_.report->wrong_label, label);
    tell_host(&errand_.report->expected_label, message.label);
    release_fence();
    tell_host(&errand_.report->wrong_peer, static_cast<std::uint64_t>(message.peer) + 1);
    return false;
  }
  RINGREDUCE_DEVICE static void release(std::uint64_t number, const LaneBox& theirs) {
    release_fence();
    store_relaxed(theirs.read(), number);
  }

  // Copies between a slice of the message and its place in flight.
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
  const int lane_;
};

}  // namespace ringreduce::device
