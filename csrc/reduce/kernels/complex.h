// Complex numbers: two floats, the real part first. Sums and scaling by a real factor treat the parts alike,
// so the loops of floats do them, over twice as many elements.
#pragma once

#include "reduce/kernels/formats.h"
#include "reduce/kernels/loops.h"

namespace ringreduce {
namespace {

template <class Format, class Op>
void combine_parts(void* const* destinations, int destination_count, const void* const* sources,
                   int source_count, std::size_t count, double scale) {
  combine_often<Format, Op>(destinations, destination_count, sources, source_count, 2 * count, scale);
}

template <class T>
struct Complex {
  T real, imag;
};

// By the schoolbook formula, as NumPy does it. Its bits do not depend on the order of the two operands.
template <class T>
RINGREDUCE_INLINE Complex<T> multiply(Complex<T> a, Complex<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}

template <class T>
void multiply_complex(void* const* destinations, int destination_count, const void* const* sources,
                      int source_count, std::size_t count, double) {
  const auto read = [&](int s, std::size_t i) {
    Complex<T> value;
    __builtin_memcpy(&value, static_cast<const char*>(sources[s]) + i * sizeof value, sizeof value);
    return value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    Complex<T> product = read(0, i);
    for (int s = 1; s < source_count; ++s) product = multiply(product, read(s, i));
    product = {one_nan(product.real), one_nan(product.imag)};
    for (int d = 0; d < destination_count; ++d) {
      __builtin_memcpy(static_cast<char*>(destinations[d]) + i * sizeof product, &product, sizeof product);
    }
  }
}

}  // namespace
}  // namespace ringreduce
