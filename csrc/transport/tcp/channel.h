// How the bytes of a connection go to and from its non-blocking socket.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <string>

namespace ringreduce {

class Channel {
 public:
  // Values of errno beyond the system's own.
  static constexpr int damaged_here = EBADMSG;  // what arrived is not what was sent
  static constexpr int damaged_there = EBADE;   // the other end says so about what it got
  static constexpr int unusable = EPROTO;       // after such a failure, or for another reason

  virtual ~Channel() = default;
  // Advances the handshake that must come first: 1 when done, otherwise -1 and errno.
  virtual int open() { return 1; }
  // Like sendmsg() and readv(): bytes, or -1 and errno.
  virtual ssize_t write(const iovec* pieces, std::size_t count) = 0;
  virtual ssize_t read(const iovec* pieces, std::size_t count) = 0;
  // Bytes that were written and that another write() must still pass to the system.
  virtual std::size_t holds() const { return 0; }
  // Bytes that were taken from the system, which reports them no more, and can be read.
  virtual std::size_t unread() const { return 0; }
  // A more precise reason than errno.
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
