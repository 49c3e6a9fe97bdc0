// How the two ends of a stream prove to each other that they belong to the same job.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "transport/tcp/stream.h"

namespace ringreduce {
namespace {

constexpr char magic[8] = {'r', 'i', 'n', 'g', 'r', 'd', 'c', '1'};

constexpr char mark = 1;
struct Proof {
  char begins;  // with `mark`, which no beat is
  Digest digest;
};

template <typename T>
std::string_view view_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

void copy_to(char (&to)[16], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), sizeof to));
}

}  // namespace

Stream::Stream(std::uint64_t id, Descriptor socket, const Membership& membership)
    : id(id), socket_(std::move(socket)), membership_(membership), state_(State::greeting) {}

Stream::Stream(std::uint64_t id, Descriptor socket, const Membership& membership, int to, Purpose purpose)
    : id(id),
      socket_(std::move(socket)),
      membership_(membership),
      dialed_(true),
      purpose_(purpose),
      peer_(to) {
  std::memcpy(hello_.magic, magic, sizeof magic);
  hello_.from = membership.rank;
  hello_.to = to;
  hello_.world = membership.world;
  hello_.purpose = static_cast<std::uint32_t>(purpose);
  copy_to(hello_.group, membership.group);
  copy_to(hello_.nonce, random_bytes(sizeof hello_.nonce));
}

Digest Stream::proof_of(const char* side) const {
  std::string text = side;
  text += view_of(hello_);
  text += view_of(answer_.nonce);
  return hmac_sha256(membership_.secret, text);
}

// Short enough to go at once into an empty connection.
bool Stream::say(const void* bytes, std::size_t count) {
  if (::send(fd(), bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(count)) return true;
  ended_ = true;
  fail("has hung up before it proved to be a rank of this job");
  return false;
}

// Never more than what is to come next: what follows are frames.
bool Stream::hear(std::size_t count) {
  char bytes[sizeof(Hello)];
  const ssize_t got = ::recv(fd(), bytes, count - heard_.size(), MSG_DONTWAIT);
  if (got > 0) {
    heard_.append(bytes, static_cast<std::size_t>(got));
  } else if (got == 0 || errno == ECONNRESET) {
    ended_ = true;
    fail("has hung up before it proved to be a rank of this job");
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    fail(std::strerror(errno));
  }
  return heard_.size() == count;
}

bool Stream::connect_further() {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    fail(std::strerror(error));
    return false;
  }
  sockaddr_storage unused;
  socklen_t unused_length = sizeof unused;
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&unused), &unused_length) != 0) return false;  // not yet
  if (!say(&hello_, sizeof hello_)) return false;
  state_ = State::answering;
  return true;
}

bool Stream::read_hello() {
  const bool whole = hear(sizeof hello_);
  if (std::memcmp(heard_.data(), magic, std::min(heard_.size(), sizeof magic)) != 0) {
    fail("did not begin as a rank does");
    return false;
  }
  if (!whole) return false;
  std::memcpy(&hello_, heard_.data(), sizeof hello_);
  heard_.clear();
  const bool meant = hello_.to == membership_.rank && hello_.world == membership_.world && hello_.from >= 0 &&
                     hello_.from < membership_.world && hello_.from != membership_.rank &&
                     std::memcmp(hello_.group, membership_.group.data(), sizeof hello_.group) == 0;
  if (!meant || hello_.purpose > static_cast<std::uint32_t>(Purpose::pulse)) {
    fail("wanted another rank, or another job");
    return false;
  }
  copy_to(answer_.nonce, random_bytes(sizeof answer_.nonce));
  answer_.proof = proof_of("accept");
  state_ = State::proving;
  return say(&answer_, sizeof answer_);
}

bool Stream::read_answer() {
  if (!hear(sizeof answer_)) return false;
  std::memcpy(&answer_, heard_.data(), sizeof answer_);
  heard_.clear();
  if (!equal(answer_.proof, proof_of("accept"))) {
    fail("does not know this job's secret");
    return false;
  }
  const Proof proof{mark, proof_of("dial")};
  state_ = State::ready;
  return say(&proof, sizeof proof);
}

// Beats may come before it.
bool Stream::read_proof() {
  Proof proof;
  while (heard_.empty()) {
    if (!hear(1)) return false;
    if (heard_[0] != mark) heard_.clear();
  }
  if (!hear(sizeof proof)) return false;
  std::memcpy(&proof, heard_.data(), sizeof proof);
  heard_.clear();
  if (!equal(proof.digest, proof_of("dial"))) {
    fail("does not know this job's secret");
    return false;
  }
  peer_ = hello_.from;
  purpose_ = static_cast<Purpose>(hello_.purpose);
  state_ = State::ready;
  return true;
}

bool Stream::shake_hands() {
  bool moved = false;
  while (broken_.empty()) {
    bool did = false;
    switch (state_) {
      case State::connecting:
        did = connect_further();
        break;
      case State::greeting:
        did = read_hello();
        break;
      case State::answering:
        did = read_answer();
        break;
      case State::proving:
        did = read_proof();
        break;
      case State::ready:
        return moved;
    }
    if (!did) return moved;
    moved = true;
  }
  return moved;
}

}  // namespace ringreduce
