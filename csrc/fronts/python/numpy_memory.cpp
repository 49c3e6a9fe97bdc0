#include "fronts/python/numpy_memory.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "transport/memory/block_pool.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

// PyDataMem_Handler and PyDataMemAllocator of NumPy's C API, version 1, which is stable.
struct Allocator {
  void* context;
  void* (*malloc)(void* context, std::size_t bytes);
  void* (*calloc)(void* context, std::size_t count, std::size_t bytes);
  void* (*realloc)(void* context, void* memory, std::size_t bytes);
  void (*free)(void* context, void* memory, std::size_t bytes);
};
struct Handler {
  char name[127];
  std::uint8_t version;
  Allocator allocator;
};
constexpr auto handler_name = "mem_handler";
constexpr int set_handler = 304, get_handler = 305;  // places in the table of NumPy's functions

constexpr std::size_t least = std::size_t{256} << 10;  // smaller messages are copied as fast as they are read

std::mutex usual_mutex;  // held to set what follows
Allocator usual;

void* allocate(void*, std::size_t bytes) {
  void* const block = bytes < least ? nullptr : block_pool::allocate(bytes, block_pool::Kind::undefined);
  return block ? block : usual.malloc(usual.context, bytes);
}

void* allocate_zeroed(void*, std::size_t count, std::size_t bytes) {
  std::size_t all = 0;
  const bool large = !__builtin_mul_overflow(count, bytes, &all) && all >= least;
  void* const block = large ? block_pool::allocate(all, block_pool::Kind::zeroed) : nullptr;
  return block ? block : usual.calloc(usual.context, count, bytes);
}

void release(void*, void* memory, std::size_t bytes) {
  if (!memory || !block_pool::free(memory)) usual.free(usual.context, memory, bytes);
}

void* reallocate(void* context, void* memory, std::size_t bytes) {
  const auto before = memory ? block_pool::size_of(memory) : std::nullopt;
  if (!before) return usual.realloc(usual.context, memory, bytes);
  void* const moved = allocate(context, bytes);
  if (!moved) return nullptr;
  std::memcpy(moved, memory, std::min(bytes, *before));
  block_pool::free(memory);
  return moved;
}

Handler ours{"ringreduce", 1, {nullptr, allocate, allocate_zeroed, reallocate, release}};

}  // namespace

// NumPy keeps the handler in a context variable, so that each thread has its own.
void allocate_arrays() {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::object table =
      nb::getattr(numpy, nb::hasattr(numpy, "_core") ? "_core" : "core").attr("multiarray");
  const nb::object capsule_of_table = table.attr("_ARRAY_API");
  void** const functions = static_cast<void**>(PyCapsule_GetPointer(capsule_of_table.ptr(), nullptr));
  if (!functions) throw nb::python_error();
  const nb::object before = nb::steal(reinterpret_cast<PyObject* (*)()>(functions[get_handler])());
  const auto* const handler =
      before.is_valid() ? static_cast<Handler*>(PyCapsule_GetPointer(before.ptr(), handler_name)) : nullptr;
  if (!handler) throw nb::python_error();
  if (handler == &ours) return;
  {
    const std::lock_guard lock(usual_mutex);
    if (!usual.malloc) {
      usual = handler->allocator;
      before.inc_ref();  // it stays with the process
    }
  }
  const nb::object capsule = nb::steal(PyCapsule_New(&ours, handler_name, nullptr));
  const auto set = reinterpret_cast<PyObject* (*)(PyObject*)>(functions[set_handler]);
  if (!nb::steal(set(capsule.ptr())).is_valid()) throw nb::python_error();
}

}  // namespace ringreduce
