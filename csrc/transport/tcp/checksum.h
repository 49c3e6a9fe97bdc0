// CRC-32C (Castagnoli), which shows whether bytes have changed in transit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/remote/frame.h"

namespace ringreduce {

// Of `bytes` that follow those with the checksum `before`; 0 for none. Uses the processor's instruction if it
// has one.
std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes);
// The same with tables only, as on other processors.
std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes);

// Puts the checksums of a header and its data into the header.
void seal(FrameHeader& header, const void* data);
// Whether a header is as it was sealed. No field of it can be trusted before, least of all its length. The
// data is if crc32c(checksum, data) is `header.check`.
bool is_intact(const FrameHeader& header, std::uint32_t& checksum);
bool is_intact(const FrameHeader& header, const void* data);

}  // namespace ringreduce
