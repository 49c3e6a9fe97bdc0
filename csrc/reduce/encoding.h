// Quantised forms of values in messages: "wire formats". They are encoded from float32 and decoded to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "reduce/dtype.h"

namespace ringreduce {

// bf16 and fp16 are casts, element by element. int8 and fp8 (e4m3) have a scale for each block of values.
enum class Encoding : std::uint8_t { none, bf16, fp16, int8, fp8 };

struct EncodingEntry {
  const char* name;
  std::size_t element;  // bytes
  std::size_t scale;    // additional bytes of each block
};
// In the order of Encoding.
inline constexpr EncodingEntry encoding_entries[] = {
    {"none", sizeof(float), 0}, {"bf16", 2, 0}, {"fp16", 2, 0}, {"int8", 1, 4}, {"fp8", 1, 4},
};
inline constexpr int encoding_count = std::size(encoding_entries);

constexpr const EncodingEntry& entry_of(Encoding wire) {
  return encoding_entries[static_cast<int>(wire)];
}
constexpr const char* name_of(Encoding wire) {
  return entry_of(wire).name;
}

// Blocks are counted from the beginning of the encoded span; the last one may be shorter.
inline constexpr std::size_t encoded_block = 256;
// How many values depend on each other: a block's, or one.
constexpr std::size_t encoded_unit(Encoding wire) {
  return entry_of(wire).scale > 0 ? encoded_block : 1;
}

// The cast whose codes arrays of a 16-bit float hold; none for other types.
constexpr Encoding cast_to(DType dtype) {
  if (dtype == DType::float16) return Encoding::fp16;
  return dtype == DType::bfloat16 ? Encoding::bf16 : Encoding::none;
}
// Whether arrays of this type can use the format: float32 always, and 16-bit floats with formats of one byte
// per value.
constexpr bool takes(Encoding wire, DType dtype) {
  if (dtype == DType::float32) return true;
  return entry_of(wire).element == 1 && cast_to(dtype) != Encoding::none;
}

// Bytes of `count` encoded values.
constexpr std::size_t encoded_bytes(Encoding wire, std::size_t count) {
  const EncodingEntry& entry = entry_of(wire);
  return count * entry.element + (count + encoded_block - 1) / encoded_block * entry.scale;
}

// Encodes and decodes `count` values; neither side needs to be aligned. With Q(x) = decode(encode(x)):
// - Q(Q(x)) = Q(x) bit for bit, if the blocks are the same: passing values on changes nothing.
// - Rounds to nearest even. bf16 and fp16 overflow to infinity as casts do.
// - int8 has steps of scale, which is the block's largest magnitude / 127, rounded to 16 bits, at least
//   2^-126. The largest error is half a step.
// - fp8 is e4m3 of x / scale, a power of two by which the block's largest magnitude is at most 448. The
//   largest error is 1/16 of an element, or 2^-10 * scale if that is larger. Scales are 2^-117 to 2^119;
//   values beyond 464 * 2^119 (3.08e38) become NaN.
// - NaN and, in int8 and fp8, infinities become NaN, the one of reduce.h. Other values of the block are as
//   exact as they would be without them. int8 has no -0.
// - All instruction sets give the same bits.
using Encode = void (*)(void* to, const float* from, std::size_t count);
using Decode = void (*)(float* to, const void* from, std::size_t count);
struct Codec {
  Encode encode = nullptr;
  Decode decode = nullptr;
};

// The functions are null for Encoding::none.
Codec codec_for(Encoding wire);

}  // namespace ringreduce
