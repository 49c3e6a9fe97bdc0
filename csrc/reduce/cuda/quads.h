// Four neighbouring elements of any type: a lane's share of what a warp reads or writes at once.
#pragma once

#include <type_traits>

#include "reduce/cuda/packs.h"

namespace ringreduce::device {

template <class T>
RINGREDUCE_DEVICE bool is_aligned(const char* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0;
}

template <class T>
RINGREDUCE_DEVICE T load_anywhere(const char* from) {
  if (is_aligned<T>(from)) return load_aligned<T>(from);
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
RINGREDUCE_DEVICE void store_anywhere(char* to, T value) {
  if (is_aligned<T>(to)) {
    store_aligned<T>(to, value);
  } else {
    __builtin_memcpy(to, &value, sizeof value);
  }
}

// Elements of unsigned integers or float, in `words` of which they take the first sizeof(Element).
template <class Element>
struct Quad {
  static constexpr int most_words = 4;
  static constexpr int in_word = 4 / sizeof(Element);
  using Whole = std::conditional_t<sizeof(Element) == 1, std::uint32_t,
                                   std::conditional_t<sizeof(Element) == 2, std::uint64_t, Words>>;

  std::uint32_t words[most_words];

  RINGREDUCE_DEVICE Element get(int i) const {
    if constexpr (sizeof(Element) == 4) {
      return bits_as<Element>(words[i]);
    } else {
      return static_cast<Element>(words[i / in_word] >> (i % in_word * (32 / in_word)));
    }
  }

  RINGREDUCE_DEVICE void set(int i, Element value) {
    if constexpr (sizeof(Element) == 4) {
      words[i] = bits_as<std::uint32_t>(value);
    } else {
      const int shift = i % in_word * (32 / in_word);
      const std::uint32_t others = shift == 0 ? 0 : words[i / in_word];
      words[i / in_word] = others | static_cast<std::uint32_t>(value) << shift;
    }
  }

  // The first `count` of them; zeros for the others.
  RINGREDUCE_DEVICE void load(const char* from, int count) {
    if (count >= 4 && is_aligned<Whole>(from)) {
      const Whole whole = load_aligned<Whole>(from);
      __builtin_memcpy(words, &whole, sizeof whole);
    } else {
      RINGREDUCE_UNROLL
      for (int i = 0; i < 4; ++i) {
        set(i, i < count ? load_anywhere<Element>(from + i * sizeof(Element)) : Element{});
      }
    }
  }

  RINGREDUCE_DEVICE void store(char* to, int count) const {
    if (count >= 4 && is_aligned<Whole>(to)) {
      Whole whole;
      __builtin_memcpy(&whole, words, sizeof whole);
      store_aligned<Whole>(to, whole);
    } else {
      RINGREDUCE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i < count) store_anywhere<Element>(to + i * sizeof(Element), get(i));
      }
    }
  }
};

}  // namespace ringreduce::device
