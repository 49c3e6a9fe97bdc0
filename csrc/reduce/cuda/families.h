// Which format, operator and number of sources known when compiled stand for a dtype, an op and a number of
// sources: calls visit(Combination{}) for the one. In families, which are compiled apart: they take a while.
#pragma once

#include "reduce/cuda/coded.h"
#include "reduce/cuda/combine.h"
#include "reduce/cuda/formats.h"
#include "reduce/cuda/operators.h"
#include "reduce/dtype.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

template <class F, class O, int sources_known, int elements = 1>
struct Combination {
  using Format = F;
  using Op = O;
  static constexpr int sources = sources_known;        // 0: any number
  static constexpr int elements_per_value = elements;  // of the format, in one of the dtype
};

// The numbers of sources that most schedules have.
RINGREDUCE_ANYWHERE
template <class Format, class Op, int elements = 1, class Visit>
constexpr void visit_often(int source_count, Visit visit) {
  switch (source_count) {
    case 2:
      return visit(Combination<Format, Op, 2, elements>{});
    case 4:
      return visit(Combination<Format, Op, 4, elements>{});
    case 8:
      return visit(Combination<Format, Op, 8, elements>{});
    default:
      return visit(Combination<Format, Op, 0, elements>{});
  }
}

RINGREDUCE_ANYWHERE
template <class Format, class Visit>
constexpr void visit_float(Op op, int source_count, Visit visit) {
  using Lane = typename Format::Lane;
  switch (op) {
    case Op::sum:
      return visit_often<Format, Sum>(source_count, visit);
    case Op::avg:
    case Op::premul_sum:
      return visit_often<Format, ScaledSum<Lane>>(source_count, visit);
    case Op::prod:
      return visit(Combination<Format, Product, 0>{});
    case Op::min:
      return visit(Combination<Format, FloatMin<Lane>, 0>{});
    case Op::max:
      return visit(Combination<Format, FloatMax<Lane>, 0>{});
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class T, class Visit>
constexpr void visit_complex(Op op, int source_count, Visit visit) {
  switch (op) {
    case Op::sum:
      return visit_often<Float<T>, Sum, 2>(source_count, visit);
    case Op::avg:
    case Op::premul_sum:
      return visit_often<Float<T>, ScaledSum<T>, 2>(source_count, visit);
    case Op::prod:
      return visit(Combination<Complex<T>, Product, 0>{});
    default:
      return;
  }
}

// Unsigned arithmetic wraps and has the same bits as signed; only order and division see the sign.
RINGREDUCE_ANYWHERE
template <class T, class Visit>
constexpr void visit_integer(Op op, int source_count, Visit visit) {
  using Bits = Integer<std::make_unsigned_t<T>>;
  switch (op) {
    case Op::sum:
      return visit_often<Bits, Sum>(source_count, visit);
    case Op::avg:
      return visit(Combination<Bits, IntegerAverage<T>, 0>{});
    case Op::prod:
      return visit(Combination<Bits, Product, 0>{});
    case Op::min:
      return visit(Combination<Integer<T>, Min, 0>{});
    case Op::max:
      return visit(Combination<Integer<T>, Max, 0>{});
    case Op::band:
      return visit(Combination<Bits, And, 0>{});
    case Op::bor:
      return visit(Combination<Bits, Or, 0>{});
    case Op::bxor:
      return visit(Combination<Bits, Xor, 0>{});
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_boolean(Op op, Visit visit) {
  using Bits = Integer<std::uint8_t>;
  switch (op) {
    case Op::sum:
    case Op::max:
    case Op::bor:
      return visit(Combination<Bits, Or, 0>{});
    case Op::prod:
    case Op::min:
    case Op::band:
      return visit(Combination<Bits, And, 0>{});
    case Op::bxor:
      return visit(Combination<Bits, Xor, 0>{});
    default:
      return;
  }
}

// Floats of 32 and 64 bits, alone and in pairs.
RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_wide_floats(DType dtype, Op op, int source_count, Visit visit) {
  switch (dtype) {
    case DType::float64:
      return visit_float<Float<double>>(op, source_count, visit);
    case DType::float32:
      return visit_float<Float<float>>(op, source_count, visit);
    case DType::complex64:
      return visit_complex<float>(op, source_count, visit);
    case DType::complex128:
      return visit_complex<double>(op, source_count, visit);
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_small_floats(DType dtype, Op op, int source_count, Visit visit) {
  switch (dtype) {
    case DType::float16:
      return visit_float<Float16>(op, source_count, visit);
    case DType::bfloat16:
      return visit_float<BFloat16>(op, source_count, visit);
    case DType::float8_e4m3:
      return visit_float<Float8E4M3>(op, source_count, visit);
    case DType::float8_e5m2:
      return visit_float<Float8E5M2>(op, source_count, visit);
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_wide_integers(DType dtype, Op op, int source_count, Visit visit) {
  switch (dtype) {
    case DType::int64:
      return visit_integer<std::int64_t>(op, source_count, visit);
    case DType::int32:
      return visit_integer<std::int32_t>(op, source_count, visit);
    case DType::uint32:
      return visit_integer<std::uint32_t>(op, source_count, visit);
    case DType::uint64:
      return visit_integer<std::uint64_t>(op, source_count, visit);
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_small_integers(DType dtype, Op op, int source_count, Visit visit) {
  switch (dtype) {
    case DType::int16:
      return visit_integer<std::int16_t>(op, source_count, visit);
    case DType::int8:
      return visit_integer<std::int8_t>(op, source_count, visit);
    case DType::uint8:
      return visit_integer<std::uint8_t>(op, source_count, visit);
    case DType::boolean:
      return visit_boolean(op, visit);
    case DType::uint16:
      return visit_integer<std::uint16_t>(op, source_count, visit);
    default:
      return;
  }
}

// The coders, and the formats of what is not encoded: float32, and in formats of a byte a value the 16-bit
// floats.
template <class C, class P>
struct Coding {
  using Coder = C;
  using Plain = P;
};

RINGREDUCE_ANYWHERE
template <class Coder, class Visit>
constexpr void visit_scaled(DType plain, Visit visit) {
  switch (plain) {
    case DType::float32:
      return visit(Coding<Coder, Float<float>>{});
    case DType::float16:
      return visit(Coding<Coder, Float16>{});
    case DType::bfloat16:
      return visit(Coding<Coder, BFloat16>{});
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_codings(Encoding wire, DType plain, Visit visit) {
  const bool casts = plain == DType::float32;
  switch (wire) {
    case Encoding::bf16:
      return casts ? visit(Coding<Cast<BFloat16>, Float<float>>{}) : void();
    case Encoding::fp16:
      return casts ? visit(Coding<Cast<Float16>, Float<float>>{}) : void();
    case Encoding::int8:
      return visit_scaled<ScaledInt8>(plain, visit);
    case Encoding::fp8:
      return visit_scaled<ScaledFloat8>(plain, visit);
    default:
      return;
  }
}

}  // namespace ringreduce::device
