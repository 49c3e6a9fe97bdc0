#include "reduce/wire.h"

namespace ringreduce {
namespace {

struct Entry {
  const char* name;
  std::size_t element;  // bytes
  std::size_t scale;    // bytes that each block has besides
};

// In the order of Wire.
constexpr Entry wires[wire_count] = {
    {"none", sizeof(float), 0}, {"bf16", 2, 0}, {"fp16", 2, 0}, {"int8", 1, 4}, {"fp8", 1, 4},
};

}  // namespace

const char* name_of(Wire wire) {
  return wires[static_cast<int>(wire)].name;
}

Wire cast_to(DType dtype) {
  if (dtype == DType::float16) return Wire::fp16;
  return dtype == DType::bfloat16 ? Wire::bf16 : Wire::none;
}

bool takes(Wire wire, DType dtype) {
  if (dtype == DType::float32) return true;
  return wires[static_cast<int>(wire)].element == 1 && cast_to(dtype) != Wire::none;
}

std::size_t wire_bytes(Wire wire, std::size_t count) {
  const Entry& entry = wires[static_cast<int>(wire)];
  return count * entry.element + (count + wire_block - 1) / wire_block * entry.scale;
}

}  // namespace ringreduce
