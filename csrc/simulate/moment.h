// A time in a simulation, and what it is made of.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ringreduce {

// What takes time. Of a core: each round; each message that is sent or received, whatever its size; a change
// from one rank to another; and by the byte what is copied out, copied in or combined. Beside it: the time on
// links, latencies, and what ranks or messages were late by, as the question has it.
enum class Cause : unsigned char {
  round,
  send,
  receive,
  change,
  copy_out,
  copy_in,
  combine,
  transfer,
  latency,
  delay,
};
inline constexpr std::array<std::string_view, 10> cause_names = {
    "round", "send", "receive", "change", "copy_out", "copy_in", "combine", "transfer", "latency", "delay"};
inline constexpr std::size_t cause_count = cause_names.size();

// Seconds since the beginning, and how many of them went to each cause along the chain of events that this
// moment waited for. The seconds of all causes add up to the time, but for rounding: millions of moments are
// kept.
struct Moment {
  double at = 0;
  std::array<float, cause_count> made_of{};

  void spend(double seconds, Cause cause) {
    at += seconds;
    made_of[static_cast<std::size_t>(cause)] += static_cast<float>(seconds);
  }
};

inline const Moment& later(const Moment& a, const Moment& b) {
  return a.at < b.at ? b : a;
}

}  // namespace ringreduce
