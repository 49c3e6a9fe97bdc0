// The table of one instruction set. Compiled several times: the build file names the instruction set, the
// size of its registers, and the folder of conversions of its family.
#include "reduce/instruction_sets.h"
#include "reduce/kernels/coders.h"
#include "reduce/kernels/complex.h"
#include "reduce/kernels/formats.h"
#include "reduce/kernels/loops.h"
#include "reduce/kernels/operators.h"

namespace ringreduce {
namespace {

struct Table {
  InstructionSet set{};

  constexpr void put(DType dtype, Op op, Combine combine) {
    set.combine[static_cast<int>(dtype)][static_cast<int>(op)] = combine;
  }

  template <class Format>
  constexpr void put_float(DType dtype) {
    using Lane = typename Format::Lane;
    put(dtype, Op::sum, combine_often<Format, Sum>);
    put(dtype, Op::avg, combine_often<Format, ScaledSum<Lane>>);
    put(dtype, Op::premul_sum, combine_often<Format, ScaledSum<Lane>>);
    put(dtype, Op::prod, combine_any<Format, Product>);
    put(dtype, Op::min, combine_any<Format, FloatMin<Lane>>);
    put(dtype, Op::max, combine_any<Format, FloatMax<Lane>>);
  }

  template <class T>
  constexpr void put_complex(DType dtype) {
    put(dtype, Op::sum, combine_parts<Float<T>, Sum>);
    put(dtype, Op::avg, combine_parts<Float<T>, ScaledSum<T>>);
    put(dtype, Op::premul_sum, combine_parts<Float<T>, ScaledSum<T>>);
    put(dtype, Op::prod, multiply_complex<T>);
  }

  // Unsigned arithmetic wraps and has the same bits as signed; only order and division see the sign.
  template <class T, class Unsigned>
  constexpr void put_integer(DType dtype) {
    put(dtype, Op::sum, combine_often<Integer<Unsigned>, Sum>);
    put(dtype, Op::avg, combine_any<Integer<Unsigned>, IntegerAverage<T>>);
    put(dtype, Op::prod, combine_any<Integer<Unsigned>, Product>);
    put(dtype, Op::min, combine_any<Integer<T>, Min>);
    put(dtype, Op::max, combine_any<Integer<T>, Max>);
    put(dtype, Op::band, combine_any<Integer<Unsigned>, And>);
    put(dtype, Op::bor, combine_any<Integer<Unsigned>, Or>);
    put(dtype, Op::bxor, combine_any<Integer<Unsigned>, Xor>);
  }

  constexpr void put(Encoding wire, Codec codec) { set.codec[static_cast<int>(wire)] = codec; }

  constexpr void put_boolean() {
    using Byte = Integer<std::uint8_t>;
    for (Op op : {Op::sum, Op::max, Op::bor}) put(DType::boolean, op, combine_any<Byte, Or>);
    for (Op op : {Op::prod, Op::min, Op::band}) put(DType::boolean, op, combine_any<Byte, And>);
    put(DType::boolean, Op::bxor, combine_any<Byte, Xor>);
  }
};

void copy_spans(void* const* destinations, int destination_count, const void* source, std::size_t bytes) {
  using Byte = Integer<std::uint8_t>;
  const void* const* sources = &source;
  if (destination_count == 1) {
    loop<Byte, Sum, FixedSpans<1, 1>>(destinations, 1, sources, 1, bytes, 1);
  } else {
    loop<Byte, Sum, AnySpans>(destinations, destination_count, sources, 1, bytes, 1);
  }
}

#define RINGREDUCE_TEXT(name) #name
#define RINGREDUCE_NAME(name) RINGREDUCE_TEXT(name)

consteval InstructionSet make_set() {
  Table table;
  table.put_float<Float<double>>(DType::float64);
  table.put_float<Float<float>>(DType::float32);
  table.put_float<Float16>(DType::float16);
  table.put_float<BFloat16>(DType::bfloat16);
  table.put_float<Float8E4M3>(DType::float8_e4m3);
  table.put_float<Float8E5M2>(DType::float8_e5m2);
  table.put_integer<std::int64_t, std::uint64_t>(DType::int64);
  table.put_integer<std::int32_t, std::uint32_t>(DType::int32);
  table.put_integer<std::int16_t, std::uint16_t>(DType::int16);
  table.put_integer<std::int8_t, std::uint8_t>(DType::int8);
  table.put_integer<std::uint8_t, std::uint8_t>(DType::uint8);
  table.put_boolean();
  table.put_integer<std::uint16_t, std::uint16_t>(DType::uint16);
  table.put_integer<std::uint32_t, std::uint32_t>(DType::uint32);
  table.put_integer<std::uint64_t, std::uint64_t>(DType::uint64);
  table.put_complex<float>(DType::complex64);
  table.put_complex<double>(DType::complex128);
  table.put(Encoding::bf16, codec<Cast<BFloat16>>);
  table.put(Encoding::fp16, codec<Cast<Float16>>);
  table.put(Encoding::int8, codec<Scaled<ScaledInt8>>);
  table.put(Encoding::fp8, codec<Scaled<ScaledFloat8>>);
  table.set.name = RINGREDUCE_NAME(RINGREDUCE_ISA);
  table.set.copy = copy_spans;
  return table.set;
}

}  // namespace

namespace RINGREDUCE_ISA {
extern constinit const InstructionSet kernels;
constinit const InstructionSet kernels = make_set();
}  // namespace RINGREDUCE_ISA

}  // namespace ringreduce
