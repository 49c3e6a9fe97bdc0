// Elements that are moved at once: 16 bytes of them, or a single one, aligned or not.
#pragma once

#include <type_traits>

#include "lanes.h"

namespace ringreduce::device {

inline constexpr int pack_bytes = sizeof(Words);

// Stays in words until an element is used: apart, small elements would take a register each.
template <class Element>
struct Packed {
  static constexpr int count = pack_bytes / sizeof(Element);
  static constexpr int in_word = sizeof(Element) < 4 ? 4 / sizeof(Element) : 1;
  Words words = {};

  RINGREDUCE_DEVICE Element get(int i) const {
    if constexpr (in_word > 1) {
      return static_cast<Element>(words.at[i / in_word] >> (i % in_word * (32 / in_word)));
    } else {
      Element element;
      __builtin_memcpy(&element, words.at + i * sizeof element / 4, sizeof element);
      return element;
    }
  }

  // Each element once.
  RINGREDUCE_DEVICE void set(int i, Element value) {
    if constexpr (in_word > 1) {
      const std::uint32_t bits = static_cast<std::make_unsigned_t<Element>>(value);
      words.at[i / in_word] |= bits << (i % in_word * (32 / in_word));
    } else {
      __builtin_memcpy(words.at + i * sizeof value / 4, &value, sizeof value);
    }
  }

  RINGREDUCE_DEVICE void load(const char* from) { words = load_aligned<Words>(from); }
  RINGREDUCE_DEVICE void store(char* to) const { store_aligned<Words>(to, words); }
};

template <class Element>
struct Single {
  static constexpr int count = 1;
  Element element;

  RINGREDUCE_DEVICE Element get(int) const { return element; }
  RINGREDUCE_DEVICE void set(int, Element value) { element = value; }
  RINGREDUCE_DEVICE void load(const char* from) { element = load_aligned<Element>(from); }
  RINGREDUCE_DEVICE void store(char* to) const { store_aligned<Element>(to, element); }
};

// Byte by byte.
template <class Element>
struct Misaligned : Single<Element> {
  using Single<Element>::element;
  RINGREDUCE_DEVICE void load(const char* from) { __builtin_memcpy(&element, from, sizeof element); }
  RINGREDUCE_DEVICE void store(char* to) const { __builtin_memcpy(to, &element, sizeof element); }
};

}  // namespace ringreduce::device
