// Tensors as the engine sees them: memory, an element type and a count.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "engine/planning/call.h"

namespace ringreduce::torch_backend {

using Tensors = std::vector<at::Tensor>;

// The engine's type, and how many of its elements make one of torch's.
struct Elements {
  DType dtype;
  std::size_t times;
};

// For values that are only moved: serves every type.
Elements moved(at::ScalarType type);
std::string named(const c10d::ReduceOp& op);

inline std::size_t count(const at::Tensor& tensor, Elements elements) {
  return static_cast<std::size_t>(tensor.numel()) * elements.times;
}

// A call with as many values as a tensor, which are only moved, or combined. Throws if the op is not defined
// for the type.
Call moving(Collective collective, const at::Tensor& tensor);
Call combining(Collective collective, const at::Tensor& tensor, const c10d::ReduceOp& op);

// Whether the values of a list of tensors are consecutive in memory, in one storage.
bool consecutive(const Tensors& tensors);
std::int64_t total(const Tensors& tensors);  // number of their elements
bool all_equal(const Tensors& tensors);      // in their numbers of elements

// One contiguous tensor with the values of another, or of a list in order: in their own memory if they lie
// so, otherwise a copy.
at::Tensor joined(const at::Tensor& tensor);
at::Tensor joined(const Tensors& tensors);
// The same without the values.
at::Tensor room_for(const at::Tensor& tensor);
at::Tensor room_for(const Tensors& tensors);

// Consecutive blocks of these many elements.
Extents extents_of(const std::vector<std::int64_t>& counts, std::size_t times);
Extents extents_of(const Tensors& tensors);

// Throw for tensors that are not dense on the CPU or a GPU, for several where one is expected, and for types
// and places that differ.
void check_dense(const char* what, const at::Tensor& tensor);
void check_together(const char* what, const at::Tensor& one, const at::Tensor& other);
void check_alike(const char* what, const at::Tensor& one, const at::Tensor& other);
void check_same(const char* what, const at::Tensor& one, const at::Tensor& other);
// Throws for a tensor whose elements share memory, into which torch does not copy.
void check_writable(const at::Tensor& tensor);
// For several tensors of one rank, as Gloo takes them. Throws unless there is one, and all have one size.
void check_equal(const char* what, const Tensors& tensors);
const at::Tensor& only(const char* what, const Tensors& tensors);
void check_list(const char* what, const Tensors& tensors, std::size_t length, const at::Tensor& like);
// `whole` must have `world` times the elements of `part`.
void check_pair(const char* what, const at::Tensor& whole, const at::Tensor& part, int world);

}  // namespace ringreduce::torch_backend
