// The format and operator for a dtype and an op.
#pragma once

#include "average.h"  // for the target that the build file compiles for
#include "reduce/arithmetic/formats.h"
#include "reduce/arithmetic/operators.h"
#include "reduce/dtype.h"

namespace ringreduce::RINGREDUCE_ISA {

// is_often: compiled separately for the numbers of sources in most schedules. elements: of the format, in one
// of the dtype.
template <class F, class O, bool often = false, int elements = 1>
struct Combination {
  using Format = F;
  using Op = O;
  static constexpr bool is_often = often;
  static constexpr int elements_per_value = elements;
};

RINGREDUCE_ANYWHERE
template <class Format, int elements, class Visit>
constexpr void visit_float(Op op, Visit visit) {
  using Lane = typename Format::Lane;
  switch (op) {
    case Op::sum:
      return visit(Combination<Format, Sum, true, elements>{});
    case Op::avg:
      return visit(Combination<Format, ScaledSum<Lane>, true, elements>{});
    case Op::prod:
      return visit(Combination<Format, Product>{});
    case Op::min:
      return visit(Combination<Format, FloatMin>{});
    case Op::max:
      return visit(Combination<Format, FloatMax>{});
    default:
      return;
  }
}

// Unsigned arithmetic wraps and has the same bits as signed. Only order and division depend on the sign.
RINGREDUCE_ANYWHERE
template <class T, class Visit>
constexpr void visit_integer(Op op, Visit visit) {
  using Bits = Integer<std::make_unsigned_t<T>>;
  switch (op) {
    case Op::sum:
      return visit(Combination<Bits, Sum, true>{});
    case Op::avg:
      return visit(Combination<Bits, IntegerAverage<T>>{});
    case Op::prod:
      return visit(Combination<Bits, Product>{});
    case Op::min:
      return visit(Combination<Integer<T>, Min>{});
    case Op::max:
      return visit(Combination<Integer<T>, Max>{});
    case Op::band:
      return visit(Combination<Bits, And>{});
    case Op::bor:
      return visit(Combination<Bits, Or>{});
    case Op::bxor:
      return visit(Combination<Bits, Xor>{});
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
      return visit(Combination<Bits, Or>{});
    case Op::prod:
    case Op::min:
    case Op::band:
      return visit(Combination<Bits, And>{});
    case Op::bxor:
      return visit(Combination<Bits, Xor>{});
    default:
      return;
  }
}

RINGREDUCE_ANYWHERE
template <NumberKind kind, class T, class Visit>
constexpr void visit_ops(Op op, Visit visit) {
  if (!supports(kind, op)) return;
  if constexpr (kind == NumberKind::floating) {
    visit_float<T, 1>(op, visit);
  } else if constexpr (kind == NumberKind::complex) {
    op == Op::prod ? visit(Combination<Complex<T>, Product>{}) : visit_float<Float<T>, 2>(op, visit);
  } else if constexpr (kind == NumberKind::boolean) {
    visit_boolean<Integer<T>>(op, visit);
  } else {
    visit_integer<T>(op, visit);
  }
}

// Calls visit(Combination{}), if there is one and the dtype is compiled.
RINGREDUCE_ANYWHERE
template <bool (*is_compiled)(DType), class Visit>
constexpr void visit_combination(DType dtype, Op op, Visit visit) {
#define RINGREDUCE_VISIT(dtype, name, kind, size, type)                                    \
  case DType::dtype:                                                                       \
    if constexpr (is_compiled(DType::dtype)) visit_ops<NumberKind::kind, type>(op, visit); \
    return;
  switch (dtype) { RINGREDUCE_DTYPES(RINGREDUCE_VISIT) }
#undef RINGREDUCE_VISIT
}

// Whether every supported pair has a combination.
template <bool (*is_compiled)(DType)>
constexpr bool is_complete() {
  for (int i = 0; i < dtype_count * op_count; ++i) {
    const auto dtype = static_cast<DType>(i / op_count);
    const auto op = static_cast<Op>(i % op_count);
    bool has = false;
    visit_combination<is_compiled>(dtype, op, [&](auto) { has = true; });
    if (has != (is_compiled(dtype) && supports(dtype, op))) return false;
  }
  return true;
}

}  // namespace ringreduce::RINGREDUCE_ISA
