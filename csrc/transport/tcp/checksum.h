// CRC-32C (Castagnoli), which shows whether bytes have changed on the way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce {

// Of `bytes` that follow those whose checksum is `before`; 0 where none do. By the processor's instruction
// where it has one.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes);
// The same by tables alone, as for other processors.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes);

}  // namespace ringreduce
