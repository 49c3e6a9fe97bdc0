// Measures how fast the kernels combine and copy float32 on one core, by size, in GB/s of all bytes read and
// written, and compares with memcpy. Figures are medians over rounds. Each round runs all kernels in turn, so
// that a disturbance affects all of them.
//
//   bench_reduce [shift in bytes of every span from a 64-byte boundary]
#include "reduce/reduce.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <vector>

#include "reduce/encoding.h"

namespace {

using ringreduce::Combine;
using Clock = std::chrono::steady_clock;

constexpr std::size_t largest = std::size_t{64} << 20;
constexpr int span_count = 8;
constexpr int rounds = 9;
constexpr double seconds_per_sample = 0.004;

struct Case {
  const char* name;
  int streams;  // how many bytes move for each byte of a span
  std::function<void(std::size_t bytes, std::size_t calls)> run;
};

// Returns memory that is offset by a different number of cache lines for each span, so that spans do not
// compete for the same cache sets.
char* make_span(int index, std::size_t shift) {
  const std::size_t offset = 4096 + 192 * index + shift;
  char* memory = static_cast<char*>(::operator new(largest + 2 * 4096 + offset, std::align_val_t{4096}));
  std::memset(memory, 0, largest + 2 * 4096 + offset);
  return memory + offset;
}

double seconds_per_call(const Case& measured, std::size_t bytes, std::size_t calls) {
  const auto start = Clock::now();
  measured.run(bytes, calls);
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void print_row(const std::vector<Case>& cases, std::size_t bytes) {
  std::vector<std::vector<double>> samples(cases.size());
  std::vector<std::size_t> calls(cases.size());
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const double once = seconds_per_call(cases[c], bytes, 1 + (1 << 16) / bytes);
    calls[c] = 1 + static_cast<std::size_t>(seconds_per_sample / once);
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      samples[c].push_back(seconds_per_call(cases[c], bytes, calls[c]));
    }
  }
  std::printf("%10zu", bytes);
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const double seconds = median(samples[c]);
    std::printf("  %10.1f %7.1f", seconds * 1e9, cases[c].streams * bytes / seconds * 1e-9);
  }
  std::printf("\n");
}

std::vector<Case> make_cases(char* const* span) {
  const Combine sum = ringreduce::combine_for(ringreduce::DType::float32, ringreduce::Op::sum);
  const auto combine = [=](int destinations, int sources) {
    return [=](std::size_t bytes, std::size_t calls) {
      void* const to[] = {span[0], span[4]};
      const void* const from[] = {span[0], span[1], span[2], span[3], span[4], span[5], span[6], span[7]};
      for (std::size_t call = 0; call < calls; ++call) sum(to, destinations, from, sources, bytes / 4, 1);
    };
  };
  const auto copy = [=](std::size_t bytes, std::size_t calls) {
    void* const to[] = {span[0]};
    for (std::size_t call = 0; call < calls; ++call) ringreduce::copy(to, 1, span[1], bytes);
  };
  const auto memcpy = [=](std::size_t bytes, std::size_t calls) {
    for (std::size_t call = 0; call < calls; ++call) std::memcpy(span[0], span[1], bytes);
  };
  return {{"a += b", 3, combine(1, 2)},
          {"a, c = a + b", 4, combine(2, 2)},
          {"4 sources", 5, combine(1, 4)},
          {"8 sources", 9, combine(1, 8)},
          {"copy", 2, copy},
          {"memcpy", 2, memcpy}};
}

// Returns GB/s of a = a op b in the first-level cache.
double pair_rate(char* const* span, ringreduce::DType dtype, ringreduce::Op op) {
  constexpr std::size_t bytes = 16384;
  const Combine function = ringreduce::combine_for(dtype, op);
  const Case pair = {"", 3, [=](std::size_t size, std::size_t calls) {
                       void* const to[] = {span[0]};
                       const void* const from[] = {span[0], span[1]};
                       const std::size_t count = size / size_of(dtype);
                       for (std::size_t call = 0; call < calls; ++call) function(to, 1, from, 2, count, 0.5);
                     }};
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round) samples.push_back(seconds_per_call(pair, bytes, 200));
  return pair.streams * bytes / median(samples) * 1e-9;
}

// Prints every type and operator. A slow cell is one that the compiler has not vectorised.
void print_every_kernel(char* const* span) {
  std::printf("\na = a op b, 16 KiB, GB/s\n%12s", "");
  for (int o = 0; o < ringreduce::op_count; ++o) {
    std::printf(" %10s", name_of(static_cast<ringreduce::Op>(o)));
  }
  for (int d = 0; d < ringreduce::dtype_count; ++d) {
    const auto dtype = static_cast<ringreduce::DType>(d);
    std::printf("\n%12s", name_of(dtype));
    for (int o = 0; o < ringreduce::op_count; ++o) {
      const auto op = static_cast<ringreduce::Op>(o);
      if (supports(dtype, op)) {
        std::printf(" %10.1f", pair_rate(span, dtype, op));
      } else {
        std::printf(" %10s", "-");
      }
    }
  }
  std::printf("\n");
}

// Prints the encoding formats, in GB/s of float32 values. "add" decodes pieces of a message and adds them, as
// the executor does.
void print_every_wire(char* const* span) {
  constexpr std::size_t count = 64 << 10, piece = 2048;
  const Combine sum = ringreduce::combine_for(ringreduce::DType::float32, ringreduce::Op::sum);
  auto* values = reinterpret_cast<float*>(span[0]);
  auto* decoded = reinterpret_cast<float*>(span[1]);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 2654435761u % 65536) - 32768;
  std::printf("\n256 KiB of float32, GB/s\n%12s %10s %10s %10s %10s\n", "wire", "bytes", "encode", "decode",
              "add");
  for (int w = 1; w < ringreduce::encoding_count; ++w) {
    const auto wire = static_cast<ringreduce::Encoding>(w);
    const ringreduce::Codec codec = ringreduce::codec_for(wire);
    const auto add = [&] {
      for (std::size_t at = 0; at < count; at += piece) {
        codec.decode(decoded, span[2] + encoded_bytes(wire, at), piece);
        void* const to[] = {values + at};
        const void* const from[] = {values + at, decoded};
        sum(to, 1, from, 2, piece, 1);
      }
    };
    const std::function<void()> steps[] = {[&] { codec.encode(span[2], values, count); },
                                           [&] { codec.decode(decoded, span[2], count); }, add};
    std::printf("%12s %10zu", name_of(wire), encoded_bytes(wire, count));
    for (const auto& step : steps) {
      const Case timed = {"", 1, [&](std::size_t, std::size_t calls) {
                            for (std::size_t call = 0; call < calls; ++call) step();
                          }};
      std::vector<double> samples;
      for (int round = 0; round < rounds; ++round) samples.push_back(seconds_per_call(timed, 0, 20));
      std::printf(" %10.1f", count * sizeof(float) / median(samples) * 1e-9);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t shift = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0;
  char* span[span_count];
  for (int i = 0; i < span_count; ++i) span[i] = make_span(i, shift);
  const std::vector<Case> cases = make_cases(span);
  std::printf("instruction set: %s\n", ringreduce::instruction_set());
  std::printf("ns per call, GB/s\n%10s", "bytes");
  for (const Case& each : cases) std::printf("  %18s", each.name);
  std::printf("\n");
  std::vector<std::size_t> sizes = {4, 60, 64, 256, 1024, 1020};
  for (std::size_t bytes = 4096; bytes <= largest; bytes *= 4) sizes.push_back(bytes);
  for (std::size_t bytes : sizes) print_row(cases, bytes);
  print_every_wire(span);
  print_every_kernel(span);
}
