// The one loop for every operator: whole blocks of vectors, then single vectors, then ever smaller ones. A
// block is read from all sources before any of it is written, so a destination may be a source.
#pragma once

#include "reduce/kernels/vector.h"
#include "reduce/reduce.h"

namespace ringreduce::RINGREDUCE_ISA {

// A number of spans known at compile time keeps their addresses in registers.
template <int D, int S>
struct FixedSpans {
  static constexpr int fixed_count = D + S;
  static constexpr int destination_count = D;
  static constexpr int source_count = S;
  char* destinations[D];
  const char* sources[S];
  RINGREDUCE_INLINE FixedSpans(void* const* to, int, const void* const* from, int) {
    for (int d = 0; d < D; ++d) destinations[d] = static_cast<char*>(to[d]);
    for (int s = 0; s < S; ++s) sources[s] = static_cast<const char*>(from[s]);
  }
  RINGREDUCE_INLINE char* destination(int d) const { return destinations[d]; }
  RINGREDUCE_INLINE const char* source(int s) const { return sources[s]; }
};

struct AnySpans {
  static constexpr int fixed_count = 0;
  void* const* destinations;
  int destination_count;
  const void* const* sources;
  int source_count;
  RINGREDUCE_INLINE AnySpans(void* const* to, int to_count, const void* const* from, int from_count)
      : destinations(to), destination_count(to_count), sources(from), source_count(from_count) {}
  RINGREDUCE_INLINE char* destination(int d) const { return static_cast<char*>(destinations[d]); }
  RINGREDUCE_INLINE const char* source(int s) const { return static_cast<const char*>(sources[s]); }
};

// How many lanes of a format belong together: no vector ends between them.
template <class Format>
inline constexpr int together = 1;

// What N elements of a format are decoded to.
template <class Format, int N>
struct DecodedOf {
  using type = Vec<typename Format::Lane, N>;
};

template <class Format, class Op, class Spans>
struct Loop {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  template <int N>
  using Decoded = typename DecodedOf<Format, N>::type;
  static constexpr int lanes = vector_bytes / sizeof(Lane);
  static constexpr int unroll = 4;
  static constexpr std::size_t step = lanes * sizeof(Element);  // bytes per full vector
  static constexpr std::size_t worth_aligning = 2048 / sizeof(Element);
  static constexpr std::size_t whole = lanes * unroll;  // elements of a block

  // Processors fetch ahead within a page, and begin anew in the next. Long spans are therefore walked in
  // several pages by turns: what another core has written then comes in up to a quarter less time. The blocks
  // in use lie at the same place of each page, and must fit into the ways of the first-level cache.
  static constexpr std::size_t page = 4096 / sizeof(Element);
  static constexpr std::size_t pages = Spans::fixed_count == 2                             ? 4
                                       : Spans::fixed_count > 2 && Spans::fixed_count <= 5 ? 2
                                                                                           : 1;
  static constexpr std::size_t worth_turns = (16 << 10) / sizeof(Element);

  const Spans spans;
  const Op op;

  // Combines `vectors` * `count` elements, starting at element `at`, in vectors of N lanes with `count` in
  // use.
  template <int N, int vectors, int count = N>
  RINGREDUCE_INLINE void block(std::size_t at) const {
    constexpr std::size_t stride = count * sizeof(Element);
    const std::size_t offset = at * sizeof(Element);
    Decoded<N> value[vectors];
    for (int v = 0; v < vectors; ++v) value[v] = read<N, count>(spans.source(0) + offset + v * stride);
    for (int s = 1; s < spans.source_count; ++s) {
      const char* from = spans.source(s) + offset;
      for (int v = 0; v < vectors; ++v) value[v] = op.apply(value[v], read<N, count>(from + v * stride));
    }
    Vec<Element, N> result[vectors];
    for (int v = 0; v < vectors; ++v) result[v] = Format::encode(op.after(value[v]));
    for (int d = 0; d < spans.destination_count; ++d) {
      char* to = spans.destination(d) + offset;
      for (int v = 0; v < vectors; ++v) store<Element, N, count>(to + v * stride, result[v]);
    }
  }

  // Fetches a block's destinations for writing. Another core may have read what was there before, and a store
  // would wait until it has given up the line.
  RINGREDUCE_INLINE void claim(std::size_t at) const {
    for (int d = 0; d < spans.destination_count; ++d) {
      const char* const to = spans.destination(d) + at * sizeof(Element);
      for (std::size_t line = 0; line < step * unroll; line += 64) __builtin_prefetch(to + line, 1);
    }
  }

  // The next `pages` pages.
  RINGREDUCE_INLINE void run_by_turns(std::size_t at) const {
    for (const std::size_t end = at + page; at != end; at += whole) {
      for (std::size_t turn = 0; turn < pages; ++turn) {
        if (at + whole != end) claim(at + turn * page + whole);
        block<lanes, unroll>(at + turn * page);
      }
    }
  }

  template <int N, int count>
  RINGREDUCE_INLINE Decoded<N> read(const char* from) const {
    return op.before(Format::decode(load<Element, N, count>(from)));
  }

  // The last elements, fewer than twice `width`: `width` of them if there are as many, then half as many, ...
  template <int width>
  RINGREDUCE_INLINE void rest(std::size_t at, std::size_t count) const {
    constexpr int smallest = 16 / sizeof(Lane);
    if (count & width) {
      block<(width > smallest ? width : smallest), 1, width>(at);
      at += width;
    }
    if constexpr (width > 1) rest<width / 2>(at, count);
  }

  // How many elements to take first so that later stores stay inside cache lines; 0 if no number works.
  RINGREDUCE_INLINE std::size_t misalignment() const {
    const std::size_t bytes = -reinterpret_cast<std::uintptr_t>(spans.destination(0)) % step;
    return bytes % (together<Format> * sizeof(Element)) == 0 ? bytes / sizeof(Element) : 0;
  }

  RINGREDUCE_INLINE void run(std::size_t count) const {
    std::size_t at = 0;
    if (count >= worth_aligning) {
      at = misalignment();
      rest<lanes / 2>(0, at);
    }
    if (pages > 1 && count >= worth_turns) {
      for (; count - at >= pages * page; at += pages * page) run_by_turns(at);
    }
    constexpr std::size_t ahead = 3 * whole;
    if (count - at >= ahead + whole) {
      for (std::size_t first = at; first != at + ahead; first += whole) claim(first);
    }
    for (; count - at >= whole; at += whole) {
      if (count - at >= ahead + whole) claim(at + ahead);  // and nothing beyond the span
      block<lanes, unroll>(at);
    }
    for (; count - at >= lanes; at += lanes) block<lanes, 1>(at);
    if (at != count) rest<lanes / 2>(at, count - at);
  }
};

// A function of its own, so that a short span does not pay for registers that another shape needs.
template <class Format, class Op, class Spans>
[[gnu::noinline]] void loop(void* const* destinations, int destination_count, const void* const* sources,
                            int source_count, std::size_t count, double scale) {
  Loop<Format, Op, Spans>{{destinations, destination_count, sources, source_count}, Op(scale_of(scale))}.run(
      count);
}

// The most frequent shapes are compiled separately, which makes them up to a third faster in cache. Kernels
// for old processors have one shape, because the compiler takes as long for each. `elements`: of the format,
// in each of the `count`.
template <class Format, class Op, int elements>
void combine_often(void* const* destinations, int destination_count, const void* const* sources,
                   int source_count, std::size_t count, double scale) {
  auto* chosen = loop<Format, Op, AnySpans>;
#ifndef RINGREDUCE_ONE_SHAPE
  if (destination_count == 1) {
    if (source_count == 2) chosen = loop<Format, Op, FixedSpans<1, 2>>;
    if (source_count == 4) chosen = loop<Format, Op, FixedSpans<1, 4>>;
    if (source_count == 8) chosen = loop<Format, Op, FixedSpans<1, 8>>;
  } else if (destination_count == 2 && source_count == 2) {
    chosen = loop<Format, Op, FixedSpans<2, 2>>;
  }
#endif
  return chosen(destinations, destination_count, sources, source_count, elements * count, scale);
}

// For formats that are not a vector's lanes.
template <class Format, class Op>
void combine_singly(void* const* destinations, int destination_count, const void* const* sources,
                    int source_count, std::size_t count, double scale) {
  const Op op(scale_of(scale));
  using Element = typename Format::Element;
  const auto read = [&](int s, std::size_t i) {
    Element element;
    __builtin_memcpy(&element, static_cast<const char*>(sources[s]) + i * sizeof element, sizeof element);
    return Format::decode(element);
  };
  for (std::size_t i = 0; i < count; ++i) {
    auto value = read(0, i);
    for (int s = 1; s < source_count; ++s) value = op.apply(value, read(s, i));
    const Element result = Format::encode(value);
    for (int d = 0; d < destination_count; ++d) {
      __builtin_memcpy(static_cast<char*>(destinations[d]) + i * sizeof result, &result, sizeof result);
    }
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA
