// A group of warps combines spans of which some are encoded. Each source is decoded in place, all are joined
// in float32, and the result is encoded, decoded again or stored directly. Warp w of W takes every W-th block
// of a wire format; its lanes agree on the block's scale. A warp reads a block of all sources before it
// writes any of it, so a destination may be a source of the same form.
#pragma once

#include "gpu/reduce/packs.h"
#include "gpu/reduce/spans.h"
#include "reduce/arithmetic/coders.h"
#include "reduce/arithmetic/operators.h"

namespace ringreduce::device {

// An operator on float32 that is chosen at run time: this code waits for memory, not for a branch.
struct FloatOperator {
  Op op;
  float factor;

  RINGREDUCE_DEVICE FloatOperator(Op given, const Scale& scale) : op(given), factor(1) {
    if (op == Op::avg) factor = static_cast<float>(scale.factor);
  }

  template <int n>
  RINGREDUCE_DEVICE void join(float (&value)[n], const float (&operand)[n]) const {
    const FloatMin smaller(Scale{});
    if (op == Op::prod) {
      RINGREDUCE_UNROLL
      for (int i = 0; i < n; ++i) value[i] = value[i] * operand[i];
    } else if (op == Op::min) {
      RINGREDUCE_UNROLL
      for (int i = 0; i < n; ++i) value[i] = smaller.apply(value[i], operand[i]);
    } else if (op == Op::max) {
      RINGREDUCE_UNROLL
      for (int i = 0; i < n; ++i) value[i] = -smaller.apply(-value[i], -operand[i]);
    } else {
      RINGREDUCE_UNROLL
      for (int i = 0; i < n; ++i) value[i] = value[i] + operand[i];
    }
  }
};

// Plain is the format of spans that are not encoded.
template <class Coder, class Plain>
struct CodedCombiner {
  using Code = typename Coder::Element;
  using Element = typename Plain::Element;
  static constexpr int quads = 2;  // of a lane: encoded_block is 2 * 4 * warp_lanes
  static constexpr int each = 4 * quads;
  static constexpr int apart = 4 * warp_lanes;  // elements between a lane's quads
  static constexpr int group = 4;               // sources that are read before the first one is used
  static constexpr std::size_t coded_bytes = Coder::header + encoded_block * sizeof(Code);
  static_assert(encoded_block == each * warp_lanes);

  // A lane's elements of a source: codes or plain elements.
  struct Raw {
    std::uint32_t words[quads][4];
    float scale;
  };
  struct Values {
    float at[each];
  };

  const CodedSpans& coded;
  const FloatOperator op;

  RINGREDUCE_DEVICE explicit CodedCombiner(const CodedSpans& given)
      : coded(given), op(given.op, given.spans.scale) {}

  // How many elements of a lane's quad exist; may be below 0 or above 4.
  RINGREDUCE_DEVICE int present(std::size_t block, int lane, int quad) const {
    const std::size_t begin = block * encoded_block, left = coded.spans.count - begin;
    return static_cast<int>(left < encoded_block ? left : encoded_block) - (quad * apart + lane * 4);
  }

  template <class T>
  RINGREDUCE_DEVICE void read_quads(Raw& raw, const char* from, std::size_t block, int lane) const {
    RINGREDUCE_UNROLL
    for (int q = 0; q < quads; ++q) {
      Quad<T> quad = {};
      quad.load(from + (q * apart + lane * 4) * sizeof(T), present(block, lane, q));
      RINGREDUCE_UNROLL
      for (int w = 0; w < static_cast<int>(sizeof(T)); ++w) raw.words[q][w] = quad.words.at[w];
    }
  }

  RINGREDUCE_DEVICE void read(Raw& raw, int source, std::size_t block, int lane) const {
    const char* from = coded.spans.sources[source];
    if (coded.encoded_sources >> source & 1) {
      from += block * coded_bytes;
      if constexpr (Coder::header > 0) raw.scale = load_anywhere<float>(from);
      read_quads<Code>(raw, from + Coder::header, block, lane);
    } else {
      read_quads<Element>(raw, from + block * encoded_block * sizeof(Element), block, lane);
    }
  }

  template <class T>
  RINGREDUCE_DEVICE static T element_of(const Raw& raw, int i) {
    Quad<T> quad = {};
    RINGREDUCE_UNROLL
    for (int w = 0; w < static_cast<int>(sizeof(T)); ++w) quad.words.at[w] = raw.words[i / 4][w];
    return quad.get(i % 4);
  }

  RINGREDUCE_DEVICE void decode(Values& values, const Raw& raw, int source) const {
    if (coded.encoded_sources >> source & 1) {
      RINGREDUCE_UNROLL
      for (int i = 0; i < each; ++i) values.at[i] = Coder::decode(element_of<Code>(raw, i), raw.scale);
    } else {
      RINGREDUCE_UNROLL
      for (int i = 0; i < each; ++i) values.at[i] = Plain::decode(element_of<Element>(raw, i));
    }
  }

  // A lane's values of all sources, joined. Beyond the end they are 0 or NaN, which do not change a scale.
  RINGREDUCE_DEVICE Values joined(std::size_t block, int lane) const {
    Values values = {};
    RINGREDUCE_NO_UNROLL
    for (int first = 0; first < coded.spans.source_count; first += group) {
      Raw raw[group] = {};
      RINGREDUCE_UNROLL
      for (int s = 0; s < group; ++s) {
        if (first + s < coded.spans.source_count) read(raw[s], first + s, block, lane);
      }
      RINGREDUCE_UNROLL
      for (int s = 0; s < group; ++s) {
        if (first + s >= coded.spans.source_count) continue;
        Values operand;
        decode(operand, raw[s], first + s);
        if (first + s == 0) {
          values = operand;
        } else {
          op.join(values.at, operand.at);
        }
      }
    }
    RINGREDUCE_UNROLL
    for (int i = 0; i < each; ++i) values.at[i] = one_nan(values.at[i] * op.factor);
    return values;
  }

  // The largest finite magnitude, as bits, which order magnitudes like their values.
  RINGREDUCE_DEVICE static std::uint32_t largest_of(const Values& values) {
    std::uint32_t largest = 0;
    RINGREDUCE_UNROLL
    for (int i = 0; i < each; ++i) {
      const std::uint32_t magnitude = bits_as<std::uint32_t>(values.at[i]) & magnitude_bits;
      if (magnitude < infinity_bits && magnitude > largest) largest = magnitude;
    }
    return largest;
  }

  RINGREDUCE_DEVICE void write_plain(const Values& values, std::size_t block, int lane) const {
    RINGREDUCE_UNROLL
    for (int q = 0; q < quads; ++q) {
      const std::size_t begin = block * encoded_block + q * apart + lane * 4;
      Quad<Element> quad = {};
      RINGREDUCE_UNROLL
      for (int i = 0; i < 4; ++i) quad.set(i, Plain::encode(values.at[q * 4 + i]));
      RINGREDUCE_NO_UNROLL
      for (int d = 0; d < coded.spans.destination_count; ++d) {
        if (coded.encoded_destinations >> d & 1) continue;
        quad.store(coded.spans.destinations[d] + begin * sizeof(Element), present(block, lane, q));
      }
    }
  }

  // Leaves in `values` the decoded result, if plain destinations must get it.
  RINGREDUCE_DEVICE void write_encoded(Values& values, float scale, std::size_t block, int lane) const {
    const float inverse = 1 / scale;
    RINGREDUCE_UNROLL
    for (int q = 0; q < quads; ++q) {
      Quad<Code> quad = {};
      RINGREDUCE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& value = values.at[q * 4 + i];
        quad.set(i, Coder::template encode<true>(value, inverse));
        if (coded.quantize) value = Coder::decode(quad.get(i), scale);
      }
      RINGREDUCE_NO_UNROLL
      for (int d = 0; d < coded.spans.destination_count; ++d) {
        if ((coded.encoded_destinations >> d & 1) == 0) continue;
        char* to = coded.spans.destinations[d] + block * coded_bytes;
        quad.store(to + Coder::header + (q * apart + lane * 4) * sizeof(Code), present(block, lane, q));
        if (Coder::header > 0 && q == 0 && lane == 0) store_anywhere<float>(to, scale);
      }
    }
  }

  RINGREDUCE_DEVICE void run_block(std::size_t block) const {
    PerLane<Values> values;
    PerLane<std::uint32_t> largest;
    on_lanes([&](int lane) {
      values[lane] = joined(block, lane);
      largest[lane] = largest_of(values[lane]);
    });
    if (coded.encoded_destinations != 0 || coded.quantize) {
      const float scale = Coder::scale_for(largest_of_lanes(largest));
      on_lanes([&](int lane) { write_encoded(values[lane], scale, block, lane); });
    }
    on_lanes([&](int lane) { write_plain(values[lane], block, lane); });
  }
};

// All lanes of each of `warps` warps call this.
template <class Coder, class Plain>
RINGREDUCE_DEVICE void combine_coded(const CodedSpans& coded, std::size_t warp, std::size_t warps) {
  const std::size_t blocks = (coded.spans.count + encoded_block - 1) / encoded_block;
  const CodedCombiner<Coder, Plain> combiner(coded);
  RINGREDUCE_NO_UNROLL
  for (std::size_t block = warp; block < blocks; block += warps) combiner.run_block(block);
}

}  // namespace ringreduce::device
