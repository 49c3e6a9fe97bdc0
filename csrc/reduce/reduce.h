// Combines spans of elements on the CPU: dtype x op, vectorised for several instruction sets. The best one
// that the machine has is picked at run time (RINGREDUCE_ISA=avx512|avx2|plain overrides it, for tests).
#pragma once

#include <cstddef>

#include "reduce/dtype.h"

namespace ringreduce {

// For each i < count: every destination's element i becomes (((s0 + s1) + s2) + ...) * scale, with `+`
// standing for the operator and s0, s1, ... for the sources' elements in the order given.
// - One pass; 16- and 8-bit floats are accumulated in float32 and rounded once (to nearest even) at the end.
// - A destination may be the very same span as a source; otherwise spans do not overlap.
// - sources >= 1 (one source: a scaling copy), destinations >= 1. Spans need no alignment at all.
// - scale is applied only by the function that combine_for returns for Op::avg (integers: truncating division
//   by the integer nearest to 1 / scale); every other operator ignores it.
// Integer sums and products wrap. Complex numbers are pairs of floats (real, imaginary), and the rules for
// floats hold for each part; scale is a real number. bool holds 0 or 1. min and max return NaN if any input
// is NaN, and take -0 for less than +0. Every NaN result is the same quiet NaN (positive, no payload), so
// that the bits of a result depend neither on the order of two operands nor on the instruction set.
using Combine = void (*)(void* const* destinations, int destination_count, const void* const* sources,
                         int source_count, std::size_t count, double scale);

// nullptr if supports(dtype, op) is false.
Combine combine_for(DType dtype, Op op);

// Copies bytes to every destination, reading the source once. Leaves the destination in the cache: it will be
// read again soon.
void copy(void* const* destinations, int destination_count, const void* source, std::size_t bytes);

// The same to one destination, of what is in this core's caches: its own values.
void copy_own(void* destination, const void* source, std::size_t bytes);

// Whether copy() overwrites one destination of at least so many bytes without fetching its lines first. Lines
// that another core has read are quicker to write in this way than with vector stores.
inline constexpr std::size_t least_without_fetching = 1 << 10;  // below, starting takes longer than it saves
bool copies_without_fetching();

// The instruction set in use: "avx512", "avx2", "neon", "plain". The first call of this or of a function
// above throws std::runtime_error if RINGREDUCE_ISA names one that the machine lacks.
const char* instruction_set();
// The same check, without a lasting choice.
void check_instruction_set();

}  // namespace ringreduce
