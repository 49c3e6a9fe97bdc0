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
  // To compare a function with null is no constant expression under sanitizers.
  bool has[dtype_count][op_count] = {};

  constexpr void put(DType dtype, Op op, Combine combine) {
    set.combine[static_cast<int>(dtype)][static_cast<int>(op)] = combine;
    has[static_cast<int>(dtype)][static_cast<int>(op)] = true;
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
  template <class T>
  constexpr void put_integer(DType dtype) {
    using Bits = Integer<std::make_unsigned_t<T>>;
    put(dtype, Op::sum, combine_often<Bits, Sum>);
    put(dtype, Op::avg, combine_any<Bits, IntegerAverage<T>>);
    put(dtype, Op::prod, combine_any<Bits, Product>);
    put(dtype, Op::min, combine_any<Integer<T>, Min>);
    put(dtype, Op::max, combine_any<Integer<T>, Max>);
    put(dtype, Op::band, combine_any<Bits, And>);
    put(dtype, Op::bor, combine_any<Bits, Or>);
    put(dtype, Op::bxor, combine_any<Bits, Xor>);
  }

  template <class Byte>
  constexpr void put_boolean(DType dtype) {
    for (Op op : {Op::sum, Op::max, Op::bor}) put(dtype, op, combine_any<Byte, Or>);
    for (Op op : {Op::prod, Op::min, Op::band}) put(dtype, op, combine_any<Byte, And>);
    put(dtype, Op::bxor, combine_any<Byte, Xor>);
  }

  template <NumberKind kind, class T>
  constexpr void put_all(DType dtype) {
    if constexpr (kind == NumberKind::floating) {
      put_float<T>(dtype);
    } else if constexpr (kind == NumberKind::complex) {
      put_complex<T>(dtype);
    } else if constexpr (kind == NumberKind::boolean) {
      put_boolean<Integer<T>>(dtype);
    } else {
      put_integer<T>(dtype);
    }
  }

  constexpr void put(Encoding wire, Codec codec) { set.codec[static_cast<int>(wire)] = codec; }

  constexpr bool complete() const {
    for (int i = 0; i < dtype_count * op_count; ++i) {
      const int dtype = i / op_count, op = i % op_count;
      if (has[dtype][op] != supports(static_cast<DType>(dtype), static_cast<Op>(op))) return false;
    }
    return true;
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
#define RINGREDUCE_PUT(dtype, name, kind, size, type) table.put_all<NumberKind::kind, type>(DType::dtype);
  RINGREDUCE_DTYPES(RINGREDUCE_PUT)
#undef RINGREDUCE_PUT
  if (!table.complete()) throw "there is a kernel for just what has a meaning";
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
