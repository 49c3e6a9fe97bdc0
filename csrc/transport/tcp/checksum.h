// CRC-32C (Castagnoli), which shows whether bytes have changed in transit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce {

// Of `bytes` that follow those with the checksum `before`; 0 for none. Uses the processor's instruction if it
// has one.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes);
// The same with tables only, as on other processors.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes);

}  // namespace ringreduce
