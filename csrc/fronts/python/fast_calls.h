// Reads the usual calls of collectives: blocking, with contiguous arrays in CPU memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "engine/communicator/communicator.h"
#include "fronts/python/arguments.h"
#include "fronts/python/held.h"

namespace ringreduce {

struct UsualCall {
  Call call;
  Held held;
  Blocks blocks;
  nanobind::object made;       // a new array for the result
  PyObject* result = Py_None;  // what the method returns; borrowed
};

// Called once, when the module is initialised.
void name_arguments();

// Which arguments the usual calls of a collective take: a bit for each.
std::uint32_t usual_arguments(Collective collective);

// False if only the method can make the call. `given`: as in a vectorcall, without the communicator.
bool read_usual_call(const Communicator& comm, Collective collective, std::uint32_t taken,
                     PyObject* const* given, std::size_t count, PyObject* keywords, UsualCall& read);

}  // namespace ringreduce
