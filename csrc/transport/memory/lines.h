// Moves of a few cache lines: asking for them ahead of their use, and copying less than one.
#pragma once

#include <cstring>
#include <type_traits>

#include "transport/memory/channel.h"

namespace ringreduce {

// Fetches lines for writing that peers have read. Stores to a few lines do not wait for each other. Inline,
// because compilers take a function that only fetches for one without effect.
template <int writing>
[[gnu::always_inline]] inline void fetch(const std::byte* memory, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += cache_line) __builtin_prefetch(memory + at, writing);
}
[[gnu::always_inline]] inline void claim(const std::byte* memory, std::size_t bytes) {
  if (bytes >= 4 * cache_line) fetch<1>(memory, bytes);
}

// Copies at most inline_bytes, with two overlapping moves instead of a call.
inline void copy_small(std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto ends = [&](auto width) {
    constexpr std::size_t n = decltype(width)::value;
    std::memcpy(to, from, n);
    std::memcpy(to + bytes - n, from + bytes - n, n);
  };
  if (bytes >= 16) {
    if (bytes > 32) std::memcpy(to + 16, from + 16, 16);
    ends(std::integral_constant<std::size_t, 16>());
  } else if (bytes >= 8) {
    ends(std::integral_constant<std::size_t, 8>());
  } else if (bytes >= 4) {
    ends(std::integral_constant<std::size_t, 4>());
  } else {
    for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i];
  }
}

}  // namespace ringreduce
