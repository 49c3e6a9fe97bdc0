// Turns the arguments of a collective into the engine's call. Errors name the argument.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "engine/communicator/communicator.h"
#include "fronts/python/arrays.h"

namespace ringreduce {

// Sets the op by name. With a factor it becomes the scaled sum.
void set_op(Call& call, nanobind::handle op, nanobind::handle factor);
// The same for an operator of the caller's own, which `held` keeps; false if it is none.
bool set_user_op(Call& call, nanobind::handle op, nanobind::handle factor, Held& held);
Encoding wire_named(nanobind::handle wire);

// With what is not None; the rest is as `otherwise`.
GpuOptions gpu_options(nanobind::handle max_blocks, nanobind::handle priority, GpuOptions otherwise);

// Raises unless it is a rank.
int root_of(const Communicator& comm, nanobind::handle root);

// Uneven blocks. `output` is null where it is the same as `input`, which is the case except in an all-to-all.
struct Blocks {
  std::optional<Extents> input, output;
};
Extents extents_of(std::vector<std::size_t> counts);
// After set_user_op(): counts the elements that the operator takes.
void count_in_elements(Call& call, Blocks& blocks);

// `input` or `output` may be None if the collective does not need it on this rank. The call points to the
// blocks. `held`: as for view().
Call make_call(const Communicator& comm, Collective collective, nanobind::handle input,
               nanobind::handle output, int root, const Blocks& blocks, Held& held);

}  // namespace ringreduce
