#include "reduce/encoding.h"

namespace ringreduce {
namespace {

struct Entry {
  const char* name;
  std::size_t element;  // bytes
  std::size_t scale;    // bytes that each block has besides
};

// In the order of Encoding.
constexpr Entry encodings[encoding_count] = {
    {"none", sizeof(float), 0}, {"bf16", 2, 0}, {"fp16", 2, 0}, {"int8", 1, 4}, {"fp8", 1, 4},
};

}  // namespace

const char* name_of(Encoding wire) {
  return encodings[static_cast<int>(wire)].name;
}

Encoding cast_to(DType dtype) {
  if (dtype == DType::float16) return Encoding::fp16;
  return dtype == DType::bfloat16 ? Encoding::bf16 : Encoding::none;
}

bool takes(Encoding wire, DType dtype) {
  if (dtype == DType::float32) return true;
  return encodings[static_cast<int>(wire)].element == 1 && cast_to(dtype) != Encoding::none;
}

std::size_t encoded_bytes(Encoding wire, std::size_t count) {
  const Entry& entry = encodings[static_cast<int>(wire)];
  return count * entry.element + (count + encoded_block - 1) / encoded_block * entry.scale;
}

}  // namespace ringreduce
