#include "transport/tcp/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define RINGREDUCE_HAS_CRC32C __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define RINGREDUCE_HAS_CRC32C __attribute__((target("+crc")))
#endif

namespace ringreduce {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // its bits reversed
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// [k][b]: what byte b becomes when k bytes of zeros follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::uint32_t b = 0; b < 256; ++b) {
      const std::uint32_t crc = tables[k - 1][b];
      tables[k][b] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}
constexpr Tables tables = make_tables();

std::uint64_t word_at(const std::uint8_t* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint32_t by_table(std::uint32_t crc, const std::uint8_t* at, std::size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const std::uint64_t word = word_at(at) ^ crc;
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= tables[7 - i][word >> (8 * i) & 0xff];
  }
  for (; bytes > 0; ++at, --bytes) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
  return crc;
}

#ifdef RINGREDUCE_HAS_CRC32C

// The instruction takes three cycles, and a new one can start in each, so three parts are summed at once. To
// join the sums, the first is moved over as many zero bytes as the others have, which is linear.
using Shift = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr std::uint32_t applied(const std::array<std::uint32_t, 32>& images, std::uint32_t crc) {
  std::uint32_t image = 0;
  for (int bit = 0; bit < 32; ++bit) image ^= crc >> bit & 1 ? images[bit] : 0;
  return image;
}

// Over a power of two of zeros.
constexpr Shift make_shift(std::size_t zeros) {
  std::array<std::uint32_t, 32> images{};
  for (int bit = 0; bit < 32; ++bit) {
    const std::uint32_t one = std::uint32_t{1} << bit;
    images[bit] = one >> 8 ^ tables[0][one & 0xff];
  }
  for (; zeros > 1; zeros /= 2) {
    const auto half = images;
    for (std::uint32_t& image : images) image = applied(half, image);
  }
  Shift shift{};
  for (std::size_t k = 0; k < shift.size(); ++k) {
    for (std::uint32_t b = 0; b < 256; ++b) shift[k][b] = applied(images, b << (8 * k));
  }
  return shift;
}

constexpr std::size_t long_part = 4096, short_part = 256;
constexpr Shift over_long = make_shift(long_part), over_short = make_shift(short_part);

std::uint32_t shifted(const Shift& shift, std::uint32_t crc) {
  return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff] ^ shift[3][crc >> 24];
}

RINGREDUCE_HAS_CRC32C std::uint32_t step(std::uint32_t crc, const std::uint8_t* at) {
#if defined(__x86_64__)
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word_at(at)));
#else
  return __crc32cd(crc, word_at(at));
#endif
}

RINGREDUCE_HAS_CRC32C std::uint32_t in_three(std::uint32_t crc, const std::uint8_t*& at, std::size_t& bytes,
                                             std::size_t part, const Shift& shift) {
  for (; bytes >= 3 * part; at += 3 * part, bytes -= 3 * part) {
    std::uint32_t second = 0, third = 0;
    for (std::size_t i = 0; i < part; i += 8) {
      crc = step(crc, at + i);
      second = step(second, at + part + i);
      third = step(third, at + 2 * part + i);
    }
    crc = shifted(shift, shifted(shift, crc) ^ second) ^ third;
  }
  return crc;
}

RINGREDUCE_HAS_CRC32C std::uint32_t by_instruction(std::uint32_t crc, const std::uint8_t* at,
                                                   std::size_t bytes) {
  crc = in_three(crc, at, bytes, long_part, over_long);
  crc = in_three(crc, at, bytes, short_part, over_short);
  for (; bytes >= 8; at += 8, bytes -= 8) crc = step(crc, at);
  return by_table(crc, at, bytes);
}

bool has_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#else
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

const auto fastest = has_instruction() ? by_instruction : by_table;

#else
constexpr auto fastest = by_table;
#endif

std::uint32_t checksum_of(FrameHeader header) {
  header.header_check = 0;
  header.check = 0;
  return crc32c(0, &header, sizeof header);
}

std::uint16_t header_check_of(std::uint32_t checksum, std::uint32_t check) {
  const std::uint32_t of_both = crc32c(checksum, &check, sizeof check);
  return static_cast<std::uint16_t>(of_both ^ of_both >> 16);
}

}  // namespace

void seal(FrameHeader& header, const void* data) {
  const std::uint32_t checksum = checksum_of(header);
  header.check = crc32c(checksum, data, header.bytes);
  header.header_check = header_check_of(checksum, header.check);
}

bool is_intact(const FrameHeader& header, std::uint32_t& checksum) {
  checksum = checksum_of(header);
  return header.header_check == header_check_of(checksum, header.check);
}

bool is_intact(const FrameHeader& header, const void* data) {
  return crc32c(checksum_of(header), data, header.bytes) == header.check;
}

std::uint32_t crc32c(std::uint32_t before, const void* data, std::size_t bytes) {
  return ~fastest(~before, static_cast<const std::uint8_t*>(data), bytes);
}

std::uint32_t crc32c_by_table(std::uint32_t before, const void* data, std::size_t bytes) {
  return ~by_table(~before, static_cast<const std::uint8_t*>(data), bytes);
}

}  // namespace ringreduce
