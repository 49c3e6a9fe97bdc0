// Arrays of other libraries: the buffer protocol, DLPack and the CUDA array interface. What an exporter says
// is checked before it is believed.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fronts/python/arrays.h"

namespace ringreduce {

// An array as its exporter describes it.
struct Described {
  void* data = nullptr;
  std::optional<DType> dtype;  // none: not supported
  std::string type;            // the exporter's name of it
  std::vector<std::int64_t> shape;
  std::optional<std::vector<std::int64_t>> strides;  // in `stride_unit`; none: contiguous
  std::int64_t stride_unit = 1;                      // bytes
  int device = on_host;
  bool read_only = false;
};

inline constexpr int most_axes = 64;  // of any library

// Raises TypeError for an object that is no array, and ValueError if its exporter contradicts itself.
// `writable`: as for view().
Described described(nanobind::handle object, const char* argument, bool writable, Held& held);
// The first two: nothing if the object does not have the protocol.
std::optional<Described> by_dlpack(nanobind::handle object, const char* argument, Held& held);
std::optional<Described> by_buffer(nanobind::handle object, const char* argument, bool writable, Held& held);
Described described_by_cuda_interface(nanobind::handle object, const char* argument);
// Raises as view() does.
ArrayView checked(const Described& array, const char* argument, bool writable);

// Its shape, once everything but the layout in CPU memory has been checked. For arrays of NumPy and torch,
// Python knows it.
nanobind::tuple shape_of(nanobind::handle object, const char* argument, bool writable);

[[noreturn]] void refuse(PyObject* type, const std::string& text);
[[noreturn]] void refuse_dtype(const char* argument, const std::string& name);
[[noreturn]] void refuse_layout(const char* argument);
[[noreturn]] void refuse_read_only(const char* argument);
[[noreturn]] void refuse_without_memory(const char* argument);
[[noreturn]] void refuse_fields(const char* argument, const char* protocol, const std::string& problem);

template <class Length>
std::vector<std::int64_t> lengths(const char* argument, const char* protocol, int axes, const Length* shape) {
  if (axes < 0 || axes > most_axes) refuse_fields(argument, protocol, std::to_string(axes) + " dimensions");
  if (axes > 0 && !shape) refuse_fields(argument, protocol, "dimensions but no shape");
  return {shape, shape + axes};
}

std::optional<DType> dtype_of_dlpack(nanobind::dlpack::dtype type);
// By the typestr of a CUDA array interface.
std::optional<DType> dtype_of_typestr(nanobind::handle typestr, const char* argument);

}  // namespace ringreduce
