#include "reduce/stream.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringreduce {
#if defined(__x86_64__)
namespace {

__attribute__((target("avx512f"))) void stream_avx512(char* to, const char* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * i), _mm512_loadu_si512(from + 64 * i));
  }
}

void stream_plain(char* to, const char* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines * 4; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16 * i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i)));
  }
}

}  // namespace

void stream(void* destination, const void* source, std::size_t bytes) {
  static const bool wide = __builtin_cpu_supports("avx512f");
  auto* to = static_cast<char*>(destination);
  auto* from = static_cast<const char*>(source);
  const std::size_t head = bytes < 64 ? bytes : -reinterpret_cast<std::uintptr_t>(to) % 64;
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / 64;
  (wide ? stream_avx512 : stream_plain)(to + head, from + head, lines);
  const std::size_t done = head + lines * 64;
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();
}
#else
void stream(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}
#endif

}  // namespace ringreduce
