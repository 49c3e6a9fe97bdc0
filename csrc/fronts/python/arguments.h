// Turns the arguments of a collective into the engine's call. Errors name the argument.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "engine/communicator/communicator.h"
#include "fronts/python/arrays.h"

namespace ringreduce {

// Sets the op by name. With a factor it becomes the scaled sum.
void set_op(Call& call, nanobind::handle op, nanobind::handle factor);
// The same for an operator of the caller's own, which `held` keeps; false if it is none.
bool set_user_op(Call& call, nanobind::handle op, nanobind::handle factor, Held& held);
// Then counts the elements that such an operator takes.
void count_in_elements(Call& call, Extents& input, Extents& output);
Encoding wire_named(nanobind::handle wire);

// With what is not None; the rest is as `otherwise`.
GpuOptions gpu_options(nanobind::handle max_blocks, nanobind::handle priority, GpuOptions otherwise);

// Raises unless it is a rank.
int root_of(const Communicator& comm, nanobind::handle root);

// `input` or `output` may be None if the collective does not need it on this rank. With counts (elements
// per rank), the extents are filled and the call points to them. `held`: as for view().
Call make_call(const Communicator& comm, Collective collective, nanobind::handle input,
               nanobind::handle output, int root, nanobind::handle input_counts,
               nanobind::handle output_counts, Extents& input_extents, Extents& output_extents, Held& held);

}  // namespace ringreduce
