#include "reduce/string_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ringreduce::string_copy {
namespace {

constexpr unsigned zen_3_and_4 = 0x19, zen_5 = 0x1a;

// 0: not AMD's.
unsigned family_of_amd() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != signature_AMD_ebx) return 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) return (a >> 8 & 0xf) + (a >> 20 & 0xff);
#endif
  return 0;
}

}  // namespace

bool pays() {
  static const bool yes = family_of_amd() >= zen_5;
  return yes;
}

std::size_t pays_for_own_from() {
  static const std::size_t bytes = family_of_amd() == zen_3_and_4 ? std::size_t{128} << 10 : ~std::size_t{0};
  return bytes;
}

void copy(void* destination, const void* source, std::size_t bytes) {
#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::memcpy(destination, source, bytes);  // sanitizers check it
#else
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");
#endif
}

}  // namespace ringreduce::string_copy
