// Memory of devices, which is a file's so that other processes can map it, and of the host.
#pragma once

#include <cstddef>
#include <string>

namespace ringreduce::emulated {

inline constexpr int of_host = -1;

// Whether it was given by this library: kernels reach no other memory of the host.
bool is_known(const void* memory);
// of_host: it is no device's.
int device_of(const void* memory);
// Throws std::invalid_argument, which says what it is, where the device's kernels would fault.
void check_reach(const void* memory, int device, const std::string& what);

}  // namespace ringreduce::emulated
