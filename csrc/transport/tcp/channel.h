// How the bytes of a connection go to and from its socket, which does not block.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <string>

namespace ringreduce {

class Channel {
 public:
  // What errno says beside what the system means by it.
  static constexpr int damaged_here = EBADMSG;  // what has come is not what was sent
  static constexpr int damaged_there = EBADE;   // the other end says so of what it got
  static constexpr int unusable = EPROTO;       // after such a failure, or because of another one

  virtual ~Channel() = default;
  // Moves on whatever must come before anything else: 1 when that is done, otherwise -1 and errno.
  virtual int open() { return 1; }
  // As sendmsg() and readv() do it: bytes, or -1 and errno.
  virtual ssize_t write(const iovec* pieces, std::size_t count) = 0;
  virtual ssize_t read(const iovec* pieces, std::size_t count) = 0;
  // Bytes that were written and are still to go to the system, by another write().
  virtual std::size_t holds() const { return 0; }
  // Bytes that have left the system, so that it does not tell of them any more, and can be read.
  virtual std::size_t unread() const { return 0; }
  // More of what is wrong than errno says.
  virtual std::string why() const { return {}; }
};

class PlainChannel : public Channel {
 public:
  explicit PlainChannel(int fd) : fd_(fd) {}
  ssize_t write(const iovec* pieces, std::size_t count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  ssize_t read(const iovec* pieces, std::size_t count) override {
    return readv(fd_, pieces, static_cast<int>(count));
  }

 private:
  const int fd_;
};

}  // namespace ringreduce
