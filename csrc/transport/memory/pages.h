// Pages of the system: addresses, files in memory, huge pages.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <string>

#include "transport/interface/descriptor.h"

namespace ringreduce {

// The system's, or a multiple of it: other systems than those of x86-64 have pages of up to 64 KiB.
#if defined(__x86_64__)
constexpr std::size_t page = 4096;
#else
constexpr std::size_t page = 65536;
#endif
constexpr std::size_t huge_page = std::size_t{2} << 20;

class NoSharedMemory : public std::bad_alloc {
 public:
  NoSharedMemory(std::size_t bytes, const std::string& why)
      : text_(std::make_shared<std::string>("cannot allocate " + std::to_string(bytes) +
                                            " bytes of shared memory: " + why)) {}
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;  // copying it cannot fail
};

// Addresses without memory, of which the first is `place` behind a boundary of huge pages. Throws
// std::bad_alloc.
void* reserve_addresses(std::size_t bytes, std::size_t place);

// A memfd of that size, which only processes of this user can open. None if the system refuses memfd_create,
// as some sandboxes do. Throws NoSharedMemory.
Descriptor make_memory_file(std::size_t bytes, const char* name);

// Fills the whole huge pages of shared memory with huge pages now, if the system permits.
void take_huge_pages(void* memory, std::size_t bytes);

// Whether the process has pages that must stay where they are: locked ones (mlock), and pinned ones, such as
// those that a network card or the kernel's asynchronous reads have been given. The system does not say
// which.
bool has_pinned_pages();

// Whether CUDA knows this host memory, so that it has addresses of the pages (cudaHostRegister).
bool is_registered(const void* memory);

}  // namespace ringreduce
