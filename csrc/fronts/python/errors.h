#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace ringreduce {

void bind_errors();

// Sets Python's error from one of the engine's exceptions; rethrows all others.
void raise_in_python(const std::exception_ptr& problem);

}  // namespace ringreduce
