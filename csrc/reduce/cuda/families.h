// Which format, operator and number of sources known when compiled stand for a dtype, an op and a number of
// sources: calls visit(Combination{}) for the one.
#pragma once

#include "reduce/cuda/coded.h"
#include "reduce/cuda/combine.h"
#include "reduce/cuda/formats.h"
#include "reduce/cuda/kernels.h"
#include "reduce/cuda/operators.h"
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
template <class Bits, class Visit>
constexpr void visit_boolean(Op op, Visit visit) {
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

RINGREDUCE_ANYWHERE
template <NumberKind kind, class T, class Visit>
constexpr void visit_ops(Op op, int source_count, Visit visit) {
  if constexpr (kind == NumberKind::floating) {
    visit_float<T>(op, source_count, visit);
  } else if constexpr (kind == NumberKind::complex) {
    visit_complex<T>(op, source_count, visit);
  } else if constexpr (kind == NumberKind::boolean) {
    visit_boolean<Integer<T>>(op, visit);
  } else {
    visit_integer<T>(op, source_count, visit);
  }
}

RINGREDUCE_ANYWHERE
template <Family family, class Visit>
constexpr void visit_family(DType dtype, Op op, int source_count, Visit visit) {
#define RINGREDUCE_VISIT(dtype, name, kind, size, type)           \
  case DType::dtype:                                              \
    if constexpr (family_of(DType::dtype) == family) {            \
      visit_ops<NumberKind::kind, type>(op, source_count, visit); \
    }                                                             \
    return;
  switch (dtype) { RINGREDUCE_DTYPES(RINGREDUCE_VISIT) }
#undef RINGREDUCE_VISIT
}

// Whether there is a combination for just what has a meaning.
template <Family family>
constexpr bool complete() {
  for (int i = 0; i < dtype_count * op_count; ++i) {
    const auto dtype = static_cast<DType>(i / op_count);
    const auto op = static_cast<Op>(i % op_count);
    bool has = false;
    visit_family<family>(dtype, op, 0, [&](auto) { has = true; });
    if (has != (family_of(dtype) == family && supports(dtype, op))) return false;
  }
  return true;
}
static_assert(complete<Family::wide_float>() && complete<Family::small_float>() &&
              complete<Family::wide_integer>() && complete<Family::small_integer>());

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
