// Turns the arguments of a collective into the engine's call, or refuses them by name.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "engine/communicator.h"

namespace ringreduce {

Op op_named(std::string_view name);
Encoding wire_named(const std::optional<std::string>& name);

// Same dtype, the expected numbers of elements, and no partial overlap.
void check_pair(const ArrayView& input, const ArrayView& output, const char* input_name,
                const char* output_name, std::size_t input_count, std::size_t output_count);

// `input` or `output` may be None where the collective does not need it on this rank. With counts (elements
// per rank), the extents are filled and the call points to them.
Call make_call(const Communicator& comm, const std::string& name, nanobind::handle input,
               nanobind::handle output, int root, const std::optional<std::vector<std::size_t>>& input_counts,
               const std::optional<std::vector<std::size_t>>& output_counts, Extents& input_extents,
               Extents& output_extents);

}  // namespace ringreduce
