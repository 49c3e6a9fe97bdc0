#include "transport/remote/pool.h"

#include <algorithm>
#include <bit>
#include <new>

#include "transport/interface/page_changes.h"

namespace ringreduce {
namespace {

constexpr std::align_val_t line{64};
constexpr std::size_t extra = 64;  // bytes

void destroy(Buffer* buffer) {
  page_changes::note(buffer->data, buffer->room);
  ::operator delete(buffer->data, line);
  delete buffer;
}

}  // namespace

Pool::~Pool() {
  for (const auto& buffers : spare_) {
    for (Buffer* buffer : buffers) destroy(buffer);
  }
}

// A power of two plus a line, because messages of such lengths come with a header.
Buffer* Pool::take(std::size_t bytes) {
  const std::size_t body = std::bit_ceil(std::max(bytes, smallest + extra) - extra);
  const std::size_t room = body + extra;
  const auto power = static_cast<std::size_t>(std::countr_zero(body));
  if (spare_.size() <= power) spare_.resize(power + 1);
  Buffer* buffer = nullptr;
  if (!spare_[power].empty()) {
    buffer = spare_[power].back();
    spare_[power].pop_back();
    spare_bytes_ -= room;
  } else {
    buffer = new Buffer{static_cast<std::byte*>(::operator new(room, line)), room, 0};
    held_ += room;
  }
  buffer->users = 1;
  return buffer;
}

void Pool::release(Buffer* buffer) {
  if (--buffer->users > 0) return;
  if (spare_bytes_ + buffer->room > most_spare) {
    held_ -= buffer->room;
    destroy(buffer);
    return;
  }
  spare_bytes_ += buffer->room;
  spare_[static_cast<std::size_t>(std::countr_zero(buffer->room - extra))].push_back(buffer);
}

}  // namespace ringreduce
