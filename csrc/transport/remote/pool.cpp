#include "transport/remote/pool.h"

#include <algorithm>
#include <bit>
#include <new>

#include "transport/interface/page_changes.h"

namespace ringreduce {
namespace {

constexpr std::align_val_t line{64};
constexpr std::size_t extra = 64;  // bytes

}  // namespace

Pool::~Pool() {
  for (const Spare& spare : spare_) {
    for (Buffer* buffer : spare.buffers) destroy(buffer);
  }
}

void Pool::destroy(Buffer* buffer) {
  held_ -= buffer->room;
  page_changes::note(buffer->data, buffer->room);
  ::operator delete(buffer->data, line);
  delete buffer;
}

void Pool::destroy_one() {
  Spare* oldest = nullptr;
  for (Spare& spare : spare_) {
    if (!spare.buffers.empty() && (!oldest || spare.used < oldest->used)) oldest = &spare;
  }
  Buffer* const buffer = oldest->buffers.back();
  oldest->buffers.pop_back();
  spare_bytes_ -= buffer->room;
  destroy(buffer);
}

// A power of two plus a line, because messages of such lengths come with a header.
Buffer* Pool::take(std::size_t bytes) {
  const std::size_t body = std::bit_ceil(std::max(bytes, smallest + extra) - extra);
  const std::size_t room = body + extra;
  const auto power = static_cast<std::size_t>(std::countr_zero(body));
  if (spare_.size() <= power) spare_.resize(power + 1);
  Buffer* buffer = nullptr;
  if (auto& buffers = spare_[power].buffers; !buffers.empty()) {
    buffer = buffers.back();
    buffers.pop_back();
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
  if (buffer->room > most_spare) {
    destroy(buffer);
    return;
  }
  Spare& spare = spare_[static_cast<std::size_t>(std::countr_zero(buffer->room - extra))];
  spare.buffers.push_back(buffer);
  spare.used = ++uses_;
  spare_bytes_ += buffer->room;
  while (spare_bytes_ > most_spare) destroy_one();
}

}  // namespace ringreduce
