// Tensors as the engine sees them: memory, an element type and a count.
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "engine/planning/call.h"

namespace ringreduce::torch_backend {

using Tensors = std::vector<at::Tensor>;

// The engine's type, and how many of its elements one of torch's is.
struct Elements {
  DType dtype;
  std::size_t times;
};

// For values that are only moved: every type is served.
Elements moved(at::ScalarType type);
// For values that are combined; throws where the operator has no meaning for the type.
Elements combined(at::ScalarType type, const c10d::ReduceOp& op);

Op op_of(const c10d::ReduceOp& op);
void set_op(Call& call, const c10d::ReduceOp& op);  // and the factor of PREMUL_SUM

inline std::size_t count(const at::Tensor& tensor, Elements elements) {
  return static_cast<std::size_t>(tensor.numel()) * elements.times;
}

// One tensor that has the values of a list of tensors, one behind the other: the list's own memory, if it
// lies so, else a copy.
at::Tensor joined(const Tensors& tensors);
// Room for the values of a list of tensors: the list's own memory, if it lies one behind the other.
at::Tensor room_for(const Tensors& tensors);
// The same for one tensor, which is then the room itself.
at::Tensor room_for(const at::Tensor& tensor);
// Whether the list's own memory is this one.
bool is_own_memory(const Tensors& tensors, const at::Tensor& flat);

// Blocks of these many elements, one behind the other.
Extents extents_of(const std::vector<std::int64_t>& counts, std::size_t times);
Extents extents_of(const Tensors& tensors, std::size_t times);
bool all_equal(const Tensors& tensors);  // in their numbers of elements

// Throw for what is no dense tensor on the CPU or a GPU, for several where one is meant, for types and places
// that differ.
void check_dense(const char* what, const at::Tensor& tensor);
void check_together(const char* what, const at::Tensor& one, const at::Tensor& other);
const at::Tensor& only(const char* what, const Tensors& tensors);
void check_list(const char* what, const Tensors& tensors, std::size_t length, const at::Tensor& like);
// `whole` must have `world` times the elements of `part`.
void check_pair(const char* what, const at::Tensor& whole, const at::Tensor& part, int world);

}  // namespace ringreduce::torch_backend
