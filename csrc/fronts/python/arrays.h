// How Python's arrays reach the engine: NumPy arrays through NumPy's C interface, torch tensors through their
// methods (torch is never imported here), everything else as in foreign_arrays.h.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>

#include "engine/planning/call.h"
#include "reduce/dtype.h"

namespace ringreduce {

class Held;

struct ArrayView {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::float32;
  int device = on_host;  // the device that holds the memory
  std::size_t bytes() const { return count * size_of(dtype); }
};

// `argument` names the array in errors. Raises TypeError for an object that is not an array or has an
// unsupported dtype, ValueError if it must be writable and is not, and BufferError if it is not contiguous
// (the caller then makes a copy). `held`: gets what must stay as long as the view is in use.
ArrayView view(nanobind::handle array, const char* argument, bool writable, Held& held);
// The same, with ValueError for an array that is not in CPU memory.
ArrayView view_on_host(nanobind::handle array, const char* argument, bool writable, Held& held);

// The rows of a NumPy array, along its first axis; nothing for other objects, null and an array without axes.
struct Rows {
  std::size_t count = 0, elements = 0;  // elements of a row
};
std::optional<Rows> rows_of(nanobind::handle array);
// A new NumPy array with that number of rows, which are like those of the array.
nanobind::object new_rows(nanobind::handle array, std::size_t count);

// Called once, when the module is initialised.
void prepare_arrays();

}  // namespace ringreduce
