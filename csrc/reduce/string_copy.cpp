#include "reduce/string_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ringreduce::string_copy {
namespace {

#if defined(__x86_64__)
bool is_zen_5_or_later() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0 || b != signature_AMD_ebx) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  const unsigned family = (a >> 8 & 0xf) + (a >> 20 & 0xff);
  return family >= 0x1a;
}
#else
bool is_zen_5_or_later() {
  return false;
}
#endif

}  // namespace

bool pays() {
  static const bool yes = is_zen_5_or_later();
  return yes;
}

void copy(void* destination, const void* source, std::size_t bytes) {
#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::memcpy(destination, source, bytes);  // sanitizers check it
#else
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(bytes) : : "memory");
#endif
}

}  // namespace ringreduce::string_copy
