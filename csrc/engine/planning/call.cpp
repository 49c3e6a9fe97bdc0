#include "engine/planning/call.h"

#include "engine/program/program.h"
#include "reduce/identity.h"

namespace ringreduce {
bool has_own_block_only(const Call& call, bool of_input) {
  return contents(call.collective, of_input) == Holds::own_block;
}

namespace {

std::size_t bytes_of(const Call& call, const Extents* extents, bool of_input, int world, int rank) {
  const std::size_t element = element_of(call);
  const bool own_block = has_own_block_only(call, of_input);
  if (!has_blocks(call.collective) || (own_block && !extents)) return call.count * element;
  if (!extents) return call.count * static_cast<std::size_t>(world) * element;
  if (own_block) return extents->count[rank] * element;
  return (extents->offset.back() + extents->count.back()) * element;
}

std::size_t before_own_block(const Call& call, const Extents* extents, bool of_input, int rank) {
  if (!has_own_block_only(call, of_input)) return 0;
  const std::size_t elements = extents ? extents->offset[rank] : call.count * static_cast<std::size_t>(rank);
  return elements * element_of(call);
}

}  // namespace

bool is_blind(const Call& call) {
  return call.input_extents && (call.blind || contents(call.collective, true) == Holds::exchanged);
}

void write_identity(const Call& call) {
  fill_with_identity(call.dtype, call.op, call.output, call.count);
}

std::size_t bytes_of_input(const Call& call, int world, int rank) {
  return bytes_of(call, call.input_extents, true, world, rank);
}

std::size_t bytes_of_output(const Call& call, int world, int rank) {
  return bytes_of(call, call.output_extents, false, world, rank);
}

std::size_t before_input(const Call& call, int rank) {
  return before_own_block(call, call.input_extents, true, rank);
}

std::size_t before_output(const Call& call, int rank) {
  return before_own_block(call, call.output_extents, false, rank);
}

}  // namespace ringreduce
