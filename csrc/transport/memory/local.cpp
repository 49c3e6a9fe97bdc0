#include "transport/memory/local.h"

#include <sys/mman.h>

#include <new>

#include "transport/interface/cores.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

// Anonymous pages: zeroed, and allocated only when touched.
Segment make_segment(int world) {
  const std::size_t bytes = SegmentLayout(world, MappedTransport::capacity_for(world)).bytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [bytes](std::byte* base) { munmap(base, bytes); }};
}

}  // namespace

std::vector<std::unique_ptr<Transport>> LocalTransport::group(int world) {
  std::vector<Segment> segments;
  for (int rank = 0; rank < world; ++rank) segments.push_back(make_segment(world));
  std::vector<std::unique_ptr<Transport>> transports;
  const std::uint64_t group = random_number();
  for (int rank = 0; rank < world; ++rank) {
    transports.emplace_back(new LocalTransport(rank, world, segments, usable_cores().count()));
    transports.back()->reports.group = group;
  }
  return transports;
}

// Each rank offers the address of its own handle. The second exchange keeps every handle alive until it is
// copied.
std::unique_ptr<Transport> LocalTransport::among(int rank, int world, const Exchange& exchange) {
  const Segment own = make_segment(world);
  std::vector<Segment> segments;
  for (const Segment* theirs : exchange_values(exchange, world, &own)) segments.push_back(*theirs);
  exchange("");
  return std::unique_ptr<Transport>(
      new LocalTransport(rank, world, std::move(segments), usable_cores().count()));
}

std::optional<Location> LocalTransport::locate(const void* data, std::size_t) {
  return Location{reinterpret_cast<std::uint64_t>(data)};
}

std::byte* LocalTransport::resolve(int, Location place) {
  return reinterpret_cast<std::byte*>(place.offset);
}

}  // namespace ringreduce
