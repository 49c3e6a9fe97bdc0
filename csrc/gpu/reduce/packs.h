// Elements that are moved at once: 16 bytes of them, four, or a single one, aligned or not.
#pragma once

#include <type_traits>

#include "gpu/reduce/spans.h"
#include "lanes.h"

namespace ringreduce::device {

static_assert(sizeof(Words) == pack_bytes);

// Stays in words until an element is used, because separate small elements would take a register each.
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

  // Call once for each element.
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

// The first `left` bytes of a pack that may be misaligned, and zeros for the others.
RINGREDUCE_DEVICE Words load_pack(const char* from, std::uint64_t left) {
  if (left >= pack_bytes && is_aligned<Words>(from)) return load_aligned<Words>(from);
  Words words = {};
  RINGREDUCE_UNROLL
  for (unsigned i = 0; i < pack_bytes; i += 4) {
    if (left >= i + 4 && is_aligned<std::uint32_t>(from)) {
      words.at[i / 4] = load_aligned<std::uint32_t>(from + i);
      continue;
    }
    RINGREDUCE_UNROLL
    for (unsigned b = 0; b < 4; ++b) {
      if (i + b >= left) continue;
      words.at[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(from[i + b])) << (8 * b);
    }
  }
  return words;
}

RINGREDUCE_DEVICE void store_pack(char* to, const Words& words, std::uint64_t left) {
  if (left >= pack_bytes && is_aligned<Words>(to)) return store_aligned(to, words);
  RINGREDUCE_UNROLL
  for (unsigned i = 0; i < pack_bytes; i += 4) {
    if (left >= i + 4 && is_aligned<std::uint32_t>(to)) {
      store_aligned(to + i, words.at[i / 4]);
      continue;
    }
    RINGREDUCE_UNROLL
    for (unsigned b = 0; b < 4; ++b) {
      if (i + b < left) to[i + b] = static_cast<char>(words.at[i / 4] >> (8 * b));
    }
  }
}

// Four neighbouring elements, a lane's share of what a warp reads or writes at once, the first of a pack.
template <class Element>
struct Quad : Packed<Element> {
  using Whole = std::conditional_t<sizeof(Element) == 1, std::uint32_t,
                                   std::conditional_t<sizeof(Element) == 2, std::uint64_t, Words>>;
  using Packed<Element>::words, Packed<Element>::get, Packed<Element>::set;

  // The first `count` of them, and zeros for the others.
  RINGREDUCE_DEVICE void load(const char* from, int count) {
    if (count >= 4 && is_aligned<Whole>(from)) {
      const Whole whole = load_aligned<Whole>(from);
      __builtin_memcpy(words.at, &whole, sizeof whole);
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
      __builtin_memcpy(&whole, words.at, sizeof whole);
      store_aligned<Whole>(to, whole);
    } else {
      RINGREDUCE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i < count) store_anywhere<Element>(to + i * sizeof(Element), get(i));
      }
    }
  }
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
