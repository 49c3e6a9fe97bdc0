#include "memory.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "devices.h"
#include "gpu/device/cuda/entry_points.h"
#include "mapping.h"
#include "residency.h"
#include "streams.h"

namespace ringreduce::emulated {
namespace {

// Whoever relies on zeros that nobody has written is to be found.
constexpr int fresh = 0xA5;
constexpr std::align_val_t alignment{256};

std::atomic<std::uint64_t> last_number{0};

struct Range {
  enum class Kind { made, mapped, host } kind;
  int device;
  std::size_t bytes;
  int file;                  // of `made`
  Shared of;                 // of `mapped`, where it is one
  int times;                 // that it was mapped
  std::uint64_t number = 0;  // of `made`: in the order in which they were
  // Of `made`, where peer access does not cover it: which devices reach it.
  bool is_apart = false;
  std::set<int> admitted = {};
};

// Never destroyed: streams' threads may outlive main.
struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, Range> by_begin;
};
Ranges& ranges() {
  static auto* const made = new Ranges;
  return *made;
}

std::uintptr_t address(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

void add(void* memory, const Range& range) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_begin[address(memory)] = range;
}

std::optional<std::pair<std::uintptr_t, Range>> range_around(const void* memory) {
  const std::lock_guard lock(ranges().mutex);
  auto after = ranges().by_begin.upper_bound(address(memory));
  if (after == ranges().by_begin.begin()) return std::nullopt;
  const auto& [begin, range] = *--after;
  if (address(memory) - begin >= range.bytes) return std::nullopt;
  return std::pair(begin, range);
}

// What begins there.
Range range_at(const void* memory, Range::Kind kind) {
  const std::lock_guard lock(ranges().mutex);
  const auto found = ranges().by_begin.find(address(memory));
  if (found != ranges().by_begin.end() && found->second.kind == kind) return found->second;
  throw std::invalid_argument("memory: there is none of this kind that begins there");
}

void forget(const void* memory) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_begin.erase(address(memory));
}

void* allocate(std::size_t bytes) {
  refuse_during_capture("memory");
  if (bytes == 0) return nullptr;
  const int file = make_file(bytes);
  void* const memory = map_file(file, bytes);
  std::memset(memory, fresh, bytes);
  add(memory, {Range::Kind::made, current_device(), bytes, file, {}, 0, ++last_number});
  return memory;
}

// As cudaFree does, it waits for all that the device is doing.
void free(void* memory) {
  refuse_during_capture("memory");
  if (memory == nullptr) return;
  const Range range = range_at(memory, Range::Kind::made);
  finish_device(range.device);
  forget(memory);
  unmap_file(memory, range.bytes);
  close(range.file);
}

// RINGREDUCE_EMULATED_SLOW_MEMORY: milliseconds that each takes longer than the one before it, at the end of
// which no kernel may run.
void slow_down() {
  static std::atomic<int> taken{0};
  if (std::getenv("RINGREDUCE_EMULATED_SLOW_MEMORY") == nullptr) return;
  std::this_thread::sleep_for(
      std::chrono::milliseconds(++taken * setting("RINGREDUCE_EMULATED_SLOW_MEMORY", 1)));
  for (int device = 0; device < device_count(); ++device) refuse_beside_kernels(device, "host memory");
}

void* allocate_on_host(std::size_t bytes) {
  refuse_during_capture("host memory");
  if (bytes == 0) return nullptr;
  slow_down();
  void* const memory = ::operator new(bytes, alignment);
  std::memset(memory, 0, bytes);
  add(memory, {Range::Kind::host, of_host, bytes, -1, {}, 0});
  return memory;
}

void free_on_host(void* memory) {
  refuse_during_capture("host memory");
  if (memory == nullptr) return;
  range_at(memory, Range::Kind::host);
  for (int device = 0; device < device_count(); ++device) finish_device(device);
  forget(memory);
  ::operator delete(memory, alignment);
}

void pin_on_host(void* memory, std::size_t bytes) {
  refuse_during_capture("host memory");
  if (is_known(memory)) throw std::invalid_argument("host memory: it is pinned already");
  add(memory, {Range::Kind::host, of_host, bytes, -1, {}, 0});
}

// Contiguous pieces, as those of an expandable segment are, and never freed.
void* allocate_apart(std::size_t bytes, int pieces) {
  auto* const memory = static_cast<char*>(reserve(bytes));
  const std::size_t each = bytes / static_cast<std::size_t>(pieces) / page * page;
  for (int i = 0; i < pieces; ++i) {
    const std::size_t begin = each * static_cast<std::size_t>(i), end = i + 1 < pieces ? begin + each : bytes;
    const int file = make_file(end - begin);
    map_file(file, end - begin, memory + begin);
    add(memory + begin, {Range::Kind::made, current_device(), end - begin, file, {}, 0, ++last_number, true});
  }
  return memory;
}

void admit(const std::set<int>& devices, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  for (auto& [begin, range] : ranges().by_begin) {
    if (begin >= address(memory) + bytes || begin + range.bytes <= address(memory)) continue;
    range.admitted.insert(devices.begin(), devices.end());
  }
}

// One of them: those of a card's driver may be mapped one behind the other.
device::Allocation allocation_around(const void* memory) {
  const auto found = range_around(memory);
  if (!found || found->second.kind != Range::Kind::made) {
    throw std::invalid_argument("memory: it is none of a device's that was allocated here");
  }
  return {found->first, found->second.bytes, found->second.number};
}

// RINGREDUCE_EMULATED_SHARED: what has more bytes cannot be shared, as a card's memory pools cannot.
void share(char* handle, void* memory) {
  const Range range = range_at(memory, Range::Kind::made);
  if (range.bytes > static_cast<std::size_t>(setting("RINGREDUCE_EMULATED_SHARED", INT_MAX))) {
    throw std::invalid_argument("sharing memory: it was not made for it");
  }
  const Shared shared = shared_file(range.file, range.bytes, range.device);
  static_assert(sizeof shared <= device::handle_bytes);
  std::memset(handle, 0, device::handle_bytes);
  std::memcpy(handle, &shared, sizeof shared);
}

// The same memory has one address, however often it is mapped.
void* map(const char* handle) {
  Shared shared;
  std::memcpy(&shared, handle, sizeof shared);
  reach(shared.device);
  const std::lock_guard lock(ranges().mutex);
  for (auto& [begin, range] : ranges().by_begin) {
    if (range.kind != Range::Kind::mapped || range.of != shared) continue;
    ++range.times;
    return reinterpret_cast<void*>(begin);
  }
  void* const memory = map_shared(shared);
  ranges().by_begin[address(memory)] = {Range::Kind::mapped, shared.device, shared.bytes, -1, shared, 1};
  return memory;
}

void* map_pieces(const char* handles, int count) {
  std::vector<Shared> pieces(static_cast<std::size_t>(count));
  std::size_t whole = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::memcpy(&pieces[i], handles + i * device::handle_bytes, sizeof pieces[i]);
    whole += pieces[i].bytes;
  }
  reach(pieces[0].device);
  auto* const memory = static_cast<char*>(reserve(whole));
  auto* end = memory;
  for (const Shared& piece : pieces) {
    map_shared(piece, end);
    end += piece.bytes;
  }
  add(memory, {Range::Kind::mapped, pieces[0].device, whole, -1, {}, 1});
  return memory;
}

void unmap(void* memory) {
  const std::size_t bytes = range_at(memory, Range::Kind::mapped).bytes;
  const std::lock_guard lock(ranges().mutex);
  const auto found = ranges().by_begin.find(address(memory));
  if (--found->second.times > 0) return;
  ranges().by_begin.erase(found);
  unmap_file(memory, bytes);
}

// CUDA copies what comes from pageable memory before it returns, and waits for the stream unless it is short.
// It returns when what goes there has arrived.
void move(void* to, const void* from, std::size_t bytes, void* handle) {
  constexpr std::size_t is_short = std::size_t{64} << 10;
  const auto stream = stream_at(handle);
  const bool is_captured = capture_of(*stream) != nullptr;
  if (is_known(from) || is_captured) {
    stream->put([=] { std::memmove(to, from, bytes); });
  } else {
    if (bytes > is_short) stream->finish();
    const auto* const first = static_cast<const char*>(from);
    stream->put(
        [to, data = std::vector<char>(first, first + bytes)] { std::memcpy(to, data.data(), data.size()); });
  }
  if (!is_known(to) && !is_captured) stream->finish();
}

// As a driver's batch of copies, which no graph takes.
void move_all(void* const* to, const void* const* from, const std::size_t* bytes, int count, void* handle) {
  const auto stream = stream_for_launch(handle);
  if (capture_of(*stream)) throw std::runtime_error("copies: the stream is being captured");
  for (int i = 0; i < count; ++i) {
    if (!is_known(to[i]) || !is_known(from[i])) throw std::invalid_argument("copies: not a device's memory");
    move(to[i], from[i], bytes[i], handle);
  }
}

void fill(void* memory, int byte, std::size_t bytes, void* stream) {
  if (bytes > 0 && device_of(memory) == of_host) throw std::invalid_argument("fill: not a device's memory");
  stream_at(stream)->put([=] { std::memset(memory, byte, bytes); });
}

}  // namespace

bool is_known(const void* memory) {
  return range_around(memory).has_value();
}

int device_of(const void* memory) {
  const auto range = range_around(memory);
  return range ? range->second.device : of_host;
}

// A card's kernel would fault: memory of another device that is not reached, or the host's own.
void check_reach(const void* memory, int device, const std::string& what) {
  const auto range = range_around(memory);
  if (!range) throw std::invalid_argument(what + " is no memory that kernels reach");
  const auto& [owner, is_apart, admitted] =
      std::tie(range->second.device, range->second.is_apart, range->second.admitted);
  if (owner == of_host || owner == device) return;
  if (reaches(device, owner) && (!is_apart || admitted.count(device) != 0)) return;
  throw std::invalid_argument(what + " is device " + std::to_string(owner) + "'s, which device " +
                              std::to_string(device) + " does not reach");
}

}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;

const char* ringreduce_cuda_device_of(int* device, const void* memory) {
  return ringreduce::device::failure_of([&] { *device = device_of(memory); });
}

// For tests: memory that peer access does not cover.
RINGREDUCE_EXPORT const char* ringreduce_emulated_allocate_apart(void** memory, std::size_t bytes,
                                                                 int pieces) {
  return in_context([&] { *memory = allocate_apart(bytes, pieces); });
}

const char* ringreduce_cuda_admit(const int* devices, int count, const void* memory, std::size_t bytes) {
  return in_context([&] { admit({devices, devices + count}, memory, bytes); });
}

const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes) {
  return in_context([&] { *memory = allocate(bytes); });
}

const char* ringreduce_cuda_free(void* memory) {
  return in_context([&] { ringreduce::emulated::free(memory); });
}

const char* ringreduce_cuda_allocate_on_host(void** memory, std::size_t bytes) {
  return in_context([&] { *memory = allocate_on_host(bytes); });
}

const char* ringreduce_cuda_free_on_host(void* memory) {
  return in_context([&] { free_on_host(memory); });
}

const char* ringreduce_cuda_pin_on_host(void** at, void* memory, std::size_t bytes) {
  return in_context([&] {
    pin_on_host(memory, bytes);
    *at = memory;
  });
}

const char* ringreduce_cuda_unpin_on_host(void* memory) {
  return in_context([&] {
    range_at(memory, Range::Kind::host);
    forget(memory);
  });
}

const char* ringreduce_cuda_share(char* handle, void* memory) {
  return in_context([&] { share(handle, memory); });
}

const char* ringreduce_cuda_unshare(const char* /*handle*/) {
  return nullptr;
}

const char* ringreduce_cuda_allocations(ringreduce::device::Allocation* found, int* count, const void* memory,
                                        std::size_t bytes) {
  return in_context([&] {
    const int room = *count;
    const auto* const end = static_cast<const char*>(memory) + bytes;
    *count = 0;
    for (const auto* at = static_cast<const char*>(memory); at < end;) {
      if (*count == room) throw std::invalid_argument("the memory spans too many allocations");
      const auto& one = found[(*count)++] = allocation_around(at);
      at = reinterpret_cast<const char*>(one.at + one.bytes);
    }
  });
}

const char* ringreduce_cuda_map(void** memory, const char* handles, int count) {
  return in_context([&] { *memory = count == 1 ? map(handles) : map_pieces(handles, count); });
}

const char* ringreduce_cuda_unmap(void* memory) {
  return in_context([&] { unmap(memory); });
}

const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes, void* stream) {
  return in_context([&] { move(to, from, bytes, stream); });
}

const char* ringreduce_cuda_move_all(void* const* to, const void* const* from, const std::size_t* bytes,
                                     int count, void* stream) {
  return in_context([&] { move_all(to, from, bytes, count, stream); });
}

const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return in_context([&] { fill(memory, byte, bytes, stream); });
}
