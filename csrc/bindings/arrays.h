// How Python's arrays reach the engine: NumPy arrays by NumPy's own interface, torch tensors by their methods
// (torch is never imported here), everything else through DLPack or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

#include "engine/planning/call.h"
#include "reduce/dtype.h"

namespace ringreduce {

struct ArrayView {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::float32;
  int device = on_host;  // whose memory it is in
  std::size_t bytes() const { return count * size_of(dtype); }
};

// `argument` names it in errors. Raises TypeError for what is no array or has a dtype that the library does
// not know, ValueError for what is not writable although it must be, BufferError for what is not
// contiguous (the caller then makes a copy).
ArrayView view(nanobind::handle array, const char* argument, bool writable);
// The same; ValueError for what is not in the CPU's memory.
ArrayView view_on_host(nanobind::handle array, const char* argument, bool writable);

// For the module's initialisation.
void import_numpy();

}  // namespace ringreduce
