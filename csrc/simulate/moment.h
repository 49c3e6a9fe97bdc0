// A time in a simulation, and its components.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ringreduce {

// The causes that take time. On a core: each round, each message sent or received, whatever its size, each
// change between ranks, and each byte that is copied out, copied in or combined. Elsewhere: transfers on
// links, latencies, and the delays of ranks or messages that the question specifies.
enum class Component : unsigned char {
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
inline constexpr std::array<std::string_view, 10> component_names = {
    "round", "send", "receive", "change", "copy_out", "copy_in", "combine", "transfer", "latency", "delay"};
inline constexpr std::size_t component_count = component_names.size();

// Seconds since the beginning, and how many of them each component took, along the chain of events that led
// to this moment. The components add up to the time, except for rounding: floats, because millions of
// moments are kept.
struct Moment {
  double at = 0;
  std::array<float, component_count> made_of{};

  void spend(double seconds, Component component) {
    at += seconds;
    made_of[static_cast<std::size_t>(component)] += static_cast<float>(seconds);
  }
};

inline const Moment& later(const Moment& a, const Moment& b) {
  return a.at < b.at ? b : a;
}

}  // namespace ringreduce
