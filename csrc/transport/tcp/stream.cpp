#include "transport/tcp/stream.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/tcp/checksum.h"

namespace ringreduce {
namespace {

constexpr std::size_t inbox_bytes = 32 << 10;
constexpr std::size_t most_frames = 32;  // and frames

// A frame that differs from what was sent.
struct Damaged {};

bool is_for_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

bool Stream::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
  return false;
}

// --- writing ---------------------------------------------------------------------------------------------

void Stream::fill() {
  Outgoing frame;
  while (!retired_ && queued_ < write_ahead_ && writing_.size() < most_frames &&
         frames_.outbox.take(peer_, frame, longest_)) {
    if (membership_.guard == Guard::checksums) seal(frame.header, frame.data);
    writing_.push_back(frame);
    queued_ += sizeof frame.header + frame.header.bytes;
  }
}

bool Stream::write() {
  bool moved = false;
  while (broken_.empty() && !blocked_) {
    fill();
    if (queued() == 0) return moved;
    std::array<iovec, 2 * most_frames> pieces;
    std::size_t count = 0, skip = gone_;
    const auto add = [&](const void* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (skipped < bytes) {
        auto* begin = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skipped;
        pieces[count++] = {begin, bytes - skipped};
      }
    };
    for (const Outgoing& frame : writing_) {
      add(&frame.header, sizeof frame.header);
      add(frame.data, frame.header.bytes);
    }
    const ssize_t sent = channel_->write(pieces.data(), count);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // Reading will report any other problem, after what the peer said before it.
      blocked_ = true;
      mute_ = errno == Channel::unusable;
      return moved;
    }
    moved = true;
    account(static_cast<std::size_t>(sent));
  }
  return moved;
}

void Stream::account(std::size_t bytes) {
  queued_ -= bytes;
  gone_ += bytes;
  while (!writing_.empty()) {
    const Outgoing frame = writing_.front();
    const std::size_t whole = sizeof frame.header + frame.header.bytes;
    if (gone_ < whole) return;
    gone_ -= whole;
    writing_.pop_front();
    frames_.written(peer_, frame);
  }
}

void Stream::hold_little() {
  const int unsent = 128 << 10;
  setsockopt(fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  write_ahead_ = 1;
  longest_ = 128 << 10;
}

void Stream::beat() {
  const char nothing = 0;
  [[maybe_unused]] const ssize_t sent = ::send(fd(), &nothing, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// --- reading ---------------------------------------------------------------------------------------------

// Reads the rest of a large frame into its place and what follows into the inbox, in one call.
bool Stream::receive(std::size_t most, std::size_t& received, bool& more) {
  if (inbox_.empty()) inbox_.resize(inbox_bytes);
  // Part of a header may remain.
  const bool deaf = damage_ != Damage::none;
  const std::size_t left = deaf ? 0 : inbox_end_ - inbox_begin_;
  if (left > 0) std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, left);
  inbox_begin_ = 0;
  inbox_end_ = left;
  const std::size_t wanted = in_frame_ && !deaf ? std::min<std::size_t>(header_.bytes - landed_, most) : 0;
  const iovec room{inbox_.data() + left, std::min(inbox_.size() - left, most - wanted)};
  const iovec pieces[2] = {{landing_.at + landed_, wanted}, room};
  const ssize_t got = deaf         ? ::recv(fd(), room.iov_base, room.iov_len, 0)
                      : wanted > 0 ? channel_->read(pieces, 2)
                                   : channel_->read(&room, 1);
  if (got <= 0) {
    receive_nothing(got);
    return false;
  }
  received = static_cast<std::size_t>(got);
  more = received == wanted + room.iov_len;
  const std::size_t direct = std::min(wanted, received);
  land(direct);
  inbox_end_ += received - direct;
  return true;
}

void Stream::receive_nothing(ssize_t got) {
  if (got == 0) {
    ended_ = died_ = true;
    fail("died");
  } else if (errno == Channel::damaged_here || errno == Channel::damaged_there) {
    damage_ = errno == Channel::damaged_here ? Damage::here : Damage::there;
  } else if (!is_for_later(errno)) {
    died_ = errno == ECONNRESET || errno == EPIPE;
    fail(died_ ? "died" : "can no longer be reached (" + std::string(std::strerror(errno)) + ")");
  }
}

bool Stream::read(std::size_t most) {
  bool moved = false;
  bool more = true;
  constexpr auto all = static_cast<std::size_t>(-1);
  std::size_t received = 0;
  for (std::size_t total = 0, wanted = all; more && wanted > 0 && broken_.empty();) {
    if (!receive(wanted, received, more)) return moved;
    total += received;
    // The system does not report again what the channel already holds.
    wanted = total < most ? all : channel_->unread();
    moved = true;
    try {
      unpack();
    } catch (const Damaged&) {
      damage_ = Damage::here;
    } catch (const Error& error) {
      fail("sent something that no rank sends: " + std::string(error.what()));
    }
  }
  return moved;
}

void Stream::unpack() {
  if (purpose() == Purpose::pulse || damage_ != Damage::none) {
    inbox_begin_ = inbox_end_;
    return;
  }
  if (in_frame_ && landed_ == header_.bytes) end_frame();
  while (!in_frame_ && inbox_end_ - inbox_begin_ >= sizeof header_) {
    begin_frame();
    const std::size_t here = std::min<std::size_t>(header_.bytes, inbox_end_ - inbox_begin_);
    if (here > 0) std::memcpy(landing_.at, inbox_.data() + inbox_begin_, here);
    inbox_begin_ += here;
    land(here);
    if (landed_ == header_.bytes) end_frame();
  }
}

void Stream::begin_frame() {
  std::memcpy(&header_, inbox_.data() + inbox_begin_, sizeof header_);
  inbox_begin_ += sizeof header_;
  if (membership_.guard == Guard::checksums && !is_intact(header_, check_)) throw Damaged();
  const bool has_text = header_.kind >= FrameKind::status || header_.kind == FrameKind::message;
  if (header_.kind > FrameKind::endpoint || (!has_text && header_.bytes > 0)) {
    throw Error("a header of kind " + std::to_string(static_cast<int>(header_.kind)) + ", lane " +
                std::to_string(header_.lane) + ", " + std::to_string(header_.bytes) + " bytes");
  }
  landing_ = frames_.land(peer_, header_);
  in_frame_ = true;
  landed_ = 0;
}

// Bytes are in their place, and still in a cache.
void Stream::land(std::size_t bytes) {
  if (membership_.guard == Guard::checksums) check_ = crc32c(check_, landing_.at + landed_, bytes);
  landed_ += bytes;
}

void Stream::end_frame() {
  if (membership_.guard == Guard::checksums && check_ != header_.check) throw Damaged();
  in_frame_ = false;
  const Landing landing = landing_;
  landing_ = {};
  landed_ = 0;
  frames_.landed(peer_, header_, landing);
}

void Stream::withdraw() {
  if (in_frame_ && landing_.at && !landing_.buffer) {
    landing_ = frames_.outbox.pool.room(header_.bytes);
  }
  if (writing_.empty()) return;
  // The peer has received the beginning of the first frame, and must get the rest.
  const auto others = writing_.begin() + (gone_ > 0 ? 1 : 0);
  Outgoing& first = writing_.front();
  if (gone_ > 0 && first.is_lent()) {
    first.buffer = frames_.outbox.pool.take(first.header.bytes);
    std::memcpy(first.buffer->data, first.data, first.header.bytes);
    first.data = first.buffer->data;
  }
  const auto dropped = std::remove_if(others, writing_.end(), [&](const Outgoing& frame) {
    if (!frames_.drop(peer_, frame)) return false;
    queued_ -= sizeof frame.header + frame.header.bytes;
    return true;
  });
  writing_.erase(dropped, writing_.end());
}

void Stream::forget() {
  if (landing_.buffer) frames_.outbox.pool.release(landing_.buffer);
  landing_ = {};
  in_frame_ = false;
  for (; !writing_.empty(); writing_.pop_front()) frames_.written(peer_, writing_.front());
  queued_ = gone_ = 0;
}

}  // namespace ringreduce
