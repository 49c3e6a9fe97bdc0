// Tensors in the emulated GPU's memory. Copies of one dtype run on the current stream; all other operations
// run on copies in the CPU's memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "gpu/device/cuda/entry_points.h"
#include "streams.h"

namespace ringreduce::emulated_torch {
namespace {

using at::Tensor;

constexpr std::size_t slab_bytes = 16 << 20, alignment = 256;

// From slabs, because there is no memory to be had while a stream is captured. Gives nothing back: to free
// memory waits for all that the device is doing, which may wait for a peer.
struct Allocator : public c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    int device = 0;
    check(ringreduce_cuda_current_device(&device));
    const std::lock_guard lock(mutex_);
    Slab& slab = slabs_[device];
    const std::size_t room = (bytes + alignment - 1) / alignment * alignment;
    if (room > slab.left) {
      slab.left = std::max(room, slab_bytes);
      check(ringreduce_cuda_allocate(&slab.memory, slab.left));
    }
    slab.left -= room;
    void* const memory = bytes > 0 ? static_cast<char*>(slab.memory) + slab.left : nullptr;
    return {memory, memory, [](void*) {}, {c10::kCUDA, static_cast<c10::DeviceIndex>(device)}};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the emulated GPU copies on streams only");
  }

 private:
  struct Slab {
    void* memory = nullptr;
    std::size_t left = 0;
  };
  std::mutex mutex_;
  std::map<int, Slab> slabs_;
};

c10::Allocator* allocator() {
  static auto* const made = new Allocator;
  return made;
}

constexpr c10::DispatchKeySet cuda_keys(c10::DispatchKey::CUDA);

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard there(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(sizes, allocator(), cuda_keys, type.value_or(at::kFloat), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard there(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(sizes, strides, allocator(), cuda_keys, type.value_or(at::kFloat));
}

// One element after the other, if they do not lie alike.
void move_elements(const Tensor& to, const Tensor& from, void* stream) {
  const std::size_t item = to.element_size();
  std::vector<std::int64_t> at(to.dim(), 0);
  for (std::int64_t n = 0; n < to.numel(); ++n) {
    std::int64_t there = 0, here = 0;
    for (std::int64_t d = 0; d < to.dim(); ++d) {
      there += at[d] * to.stride(d);
      here += at[d] * from.stride(d);
    }
    check(ringreduce_cuda_move(static_cast<char*>(to.data_ptr()) + there * item,
                               static_cast<const char*>(from.data_ptr()) + here * item, item, stream));
    for (std::int64_t d = to.dim() - 1; d >= 0 && ++at[d] == to.size(d); --d) at[d] = 0;
  }
}

Tensor& copy(Tensor& to, const Tensor& given, bool non_blocking) {
  if (to.scalar_type() != given.scalar_type()) return to.copy_(given.cpu().to(to.scalar_type()));
  const Tensor from = given.expand_as(to);
  const c10::Device device = to.is_cuda() ? to.device() : from.device();
  const c10::DeviceGuard there(device);
  void* const stream = handle_of(current_stream(device));
  if (to.is_non_overlapping_and_dense() && from.strides() == to.strides()) {
    check(ringreduce_cuda_move(to.data_ptr(), from.data_ptr(), to.nbytes(), stream));
  } else {
    move_elements(to, from, stream);
  }
  if (to.is_cpu() || (from.is_cpu() && !non_blocking)) check(ringreduce_cuda_synchronize(stream));
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy(target, from, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) {
    const Tensor fresh =
        at::detail::empty_generic(from.sizes(), allocator(), cuda_keys, to.scalar_type(), std::nullopt);
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    to.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides());
  }
  return copy_from(from, to, false);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("copy_", copy);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// What a sparse tensor needs to come from the CPU and to go back.
TORCH_LIBRARY_IMPL(aten, SparseCUDA, m) {
  m.impl("empty.memory_format", at::native::empty_sparse_symint);
  m.impl("_sparse_coo_tensor_with_dims", at::native::new_with_dims_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("indices", at::native::indices_sparse);
  m.impl("values", at::native::values_sparse);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("copy_", at::native::copy_sparse_wrapper_);
  m.impl("copy_sparse_to_sparse_", at::native::copy_sparse_);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

}  // namespace
}  // namespace ringreduce::emulated_torch
