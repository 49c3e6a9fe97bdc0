// A time in a simulation, and its causes.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ringreduce {

// What takes time. On a core: each round, each message sent or received, whatever its size, each change
// between ranks, and each byte that is copied out, copied in or combined. Elsewhere: transfers on links,
// latencies, and the delays of ranks or messages that the question specifies.
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

// Seconds since the beginning, and how many of them are due to each cause, along the chain of events that led
// to this moment. The causes add up to the time, except for rounding: floats, because millions of
// moments are kept.
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
