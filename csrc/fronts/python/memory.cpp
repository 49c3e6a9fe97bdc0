// Arrays in shared memory.
#include <nanobind/ndarray.h>

#include "fronts/python/bindings.h"
#include "fronts/python/foreign_arrays.h"
#include "fronts/python/numpy_memory.h"
#include "transport/memory/block_pool.h"
#include "transport/memory/shared_heap.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {

void bind_memory(nb::module_& m) {
  m.def(
      "allocate",
      [](std::size_t bytes) {
        void* memory = shared_heap::allocate(bytes);
        nb::capsule owner(memory, [](void* p) noexcept { shared_heap::free(p); });
        return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory, {bytes}, owner);
      },
      "bytes"_a, "Returns zeroed shared memory as an array of uint8. It is freed with its last view.");
  m.def("allocate_arrays", allocate_arrays,
        "Lets NumPy take large arrays that this thread makes from now on from the engine's blocks.");
  m.def("shape_of", shape_of, "x"_a.none(), "argument"_a = "x", "writable"_a = false,
        "Returns the shape of an array that is neither NumPy's nor torch's. Checks what its exporter says.");
  m.def(
      "is_shared",
      [](std::uintptr_t address, std::size_t bytes) {
        return block_pool::locate(reinterpret_cast<void*>(address), bytes).has_value();
      },
      "address"_a, "bytes"_a, "Returns whether a span of memory can be reached by peers.");
}

}  // namespace ringreduce
