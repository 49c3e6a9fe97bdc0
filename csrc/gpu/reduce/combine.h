// A group of threads combines spans: the loop of every operator. Thread t of T takes every T-th pack of 16
// bytes if the spans are aligned alike, and single elements before the first pack, after the last, and
// otherwise. A thread reads its part of all sources before it writes any of it, so a destination may be a
// source.
#pragma once

#include "gpu/reduce/packs.h"
#include "gpu/reduce/spans.h"

namespace ringreduce::device {

// `sources` is their number if it is known at compile time, otherwise 0: then they are read a few at a time.
template <class Format, class Op, int sources>
struct Combiner {
  using Element = typename Format::Element;
  using Lane = typename Format::Lane;
  static constexpr int group = sources > 0 ? sources : 4;
  // The packs that a thread takes at once. All their loads are issued before the first is used: about 128
  // bytes per thread keep the memory of the fastest cards busy. Lanes that are much wider than elements would
  // take too many registers; data that is only copied stays in its words.
  static constexpr int wanted = 8 / group;
  static constexpr int fitting = 2 * sizeof(Element);
  static constexpr int unroll = wanted < fitting || group == 1 ? wanted : fitting;

  // The same for single elements.
  static constexpr int singles = group == 1 ? wanted : 2;

  const Spans& spans;
  const std::size_t count;  // elements
  const Op op;

  RINGREDUCE_DEVICE Combiner(const Spans& given, std::size_t elements)
      : spans(given), count(elements), op(given.scale) {}

  RINGREDUCE_DEVICE int source_count() const { return sources > 0 ? sources : spans.source_count; }

  // Combines `packs` packs, the first at byte `offset`, `stride` bytes apart. Unless `all` exist: those
  // before byte `end`.
  template <class Pack, int packs, bool all>
  RINGREDUCE_DEVICE void block(std::size_t offset, std::size_t stride, std::size_t end) const {
    const auto is_there = [&](int p) { return all || offset + p * stride < end; };
    Lane value[packs][Pack::count] = {};
    for (int first = 0; first < source_count(); first += group) {
      Pack raw[group][packs] = {};
      RINGREDUCE_UNROLL
      for (int s = 0; s < group; ++s) {
        if (first + s >= source_count()) continue;
        RINGREDUCE_UNROLL
        for (int p = 0; p < packs; ++p) {
          if (is_there(p)) raw[s][p].load(spans.sources[first + s] + offset + p * stride);
        }
      }
      RINGREDUCE_UNROLL
      for (int s = 0; s < group; ++s) {
        if (first + s >= source_count()) continue;
        RINGREDUCE_UNROLL
        for (int p = 0; p < packs; ++p) join(value[p], raw[s][p], first + s == 0);
      }
    }
    Pack result[packs] = {};
    RINGREDUCE_UNROLL
    for (int p = 0; p < packs; ++p) complete(result[p], value[p]);
    RINGREDUCE_NO_UNROLL
    for (int d = 0; d < spans.destination_count; ++d) {
      char* const to = spans.destinations[d] + offset;
      RINGREDUCE_UNROLL
      for (int p = 0; p < packs; ++p) {
        if (is_there(p)) result[p].store(to + p * stride);
      }
    }
  }

  template <class Pack>
  RINGREDUCE_DEVICE void join(Lane (&value)[Pack::count], const Pack& raw, bool is_first) const {
    RINGREDUCE_UNROLL
    for (int i = 0; i < Pack::count; ++i) {
      const Lane operand = op.before(Format::decode(raw.get(i)));
      value[i] = is_first ? operand : op.apply(value[i], operand);
    }
  }

  template <class Pack>
  RINGREDUCE_DEVICE void complete(Pack& result, const Lane (&value)[Pack::count]) const {
    RINGREDUCE_UNROLL
    for (int i = 0; i < Pack::count; ++i) result.set(i, Format::encode(op.after(value[i])));
  }

  // `count` packs, the first at byte `begin`. The last ones also run together, because one by one, a thread
  // would wait for each.
  template <class Pack, int packs>
  RINGREDUCE_DEVICE void rows(std::size_t begin, std::size_t count, std::size_t thread,
                              std::size_t threads) const {
    constexpr std::size_t size = Pack::count * sizeof(Element);
    const std::size_t end = begin + count * size;
    std::size_t i = thread;
    RINGREDUCE_NO_UNROLL
    for (; i + (packs - 1) * threads < count; i += packs * threads) {
      block<Pack, packs, true>(begin + i * size, threads * size, end);
    }
    if (packs > 1 && i < count) block<Pack, packs, false>(begin + i * size, threads * size, end);
  }

  // The bits in which the addresses of two spans differ.
  RINGREDUCE_DEVICE std::uintptr_t differing() const {
    std::uintptr_t bits = 0;
    RINGREDUCE_NO_UNROLL
    for (int s = 1; s < source_count(); ++s) bits |= address(spans.sources[s]) ^ address(spans.sources[0]);
    RINGREDUCE_NO_UNROLL
    for (int d = 0; d < spans.destination_count; ++d) {
      bits |= address(spans.destinations[d]) ^ address(spans.sources[0]);
    }
    return bits;
  }

  RINGREDUCE_DEVICE static std::uintptr_t address(const char* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }

  RINGREDUCE_DEVICE void run(std::size_t thread, std::size_t threads) const {
    const std::uintptr_t apart = differing(), base = address(spans.sources[0]);
    const std::size_t before = -base % pack_bytes;  // bytes
    if (apart % pack_bytes == 0 && before % sizeof(Element) == 0) {
      const std::size_t whole = before / sizeof(Element);
      run_packed(whole < count ? whole : count, thread, threads);
    } else if ((apart | base) % alignof(Element) == 0) {
      rows<Single<Element>, singles>(0, count, thread, threads);
    } else {
      rows<Misaligned<Element>, 1>(0, count, thread, threads);
    }
  }

  // `head` elements lie before the first pack.
  RINGREDUCE_DEVICE void run_packed(std::size_t head, std::size_t thread, std::size_t threads) const {
    const std::size_t packs = (count - head) / Packed<Element>::count;
    rows<Packed<Element>, unroll>(head * sizeof(Element), packs, thread, threads);
    const std::size_t end = head + packs * Packed<Element>::count;
    RINGREDUCE_NO_UNROLL
    for (std::size_t i = thread; i < head + (count - end); i += threads) {
      block<Single<Element>, 1, true>((i < head ? i : end + (i - head)) * sizeof(Element), 0, 0);
    }
  }
};

// Each of `threads` threads calls this. They need not be of one block, nor meet.
template <class Format, class Op, int sources>
RINGREDUCE_DEVICE void combine(const Spans& spans, std::size_t thread, std::size_t threads) {
  Combiner<Format, Op, sources>(spans, spans.count).run(thread, threads);
}

}  // namespace ringreduce::device
