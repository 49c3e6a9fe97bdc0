// How the two ends of a stream prove to each other that they belong to the same job.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "transport/interface/exchange.h"
#include "transport/interface/record.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/tls.h"

namespace ringreduce {
namespace {

constexpr char magic[8] = {'r', 'i', 'n', 'g', 'r', 'd', 'c', '0' + protocol};
constexpr std::size_t most_beats = 1 << 20;  // before a proof: a day's beats

constexpr char wrong_secret[] =
    "does not know this job's secret: RINGREDUCE_SECRET must be the same on all ranks";

constexpr char mark = 1;
struct LastWord {
  char begins;  // with `mark`, which differs from a beat
  Digest digest;
};

void copy_to(char (&to)[16], const std::string& from) {
  std::memcpy(to, from.data(), std::min(from.size(), sizeof to));
}

}  // namespace

// The layout of records is easily changed without a thought of the protocol.
Build this_build() {
  Build build{};
  std::snprintf(build.name, sizeof build.name, "%s, protocol %d.%zu", RINGREDUCE_VERSION, protocol,
                sizeof(Record));
  return build;
}

std::string mismatch(const Build& theirs) {
  std::string name(theirs.name, strnlen(theirs.name, sizeof theirs.name));
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return "runs another build of ringreduce (" + name + "; here it is " + this_build().name +
         "): install the same one everywhere";
}

Stream::Stream(std::uint64_t id, Descriptor socket, const Membership& membership, Frames& frames)
    : id(id),
      socket_(std::move(socket)),
      channel_(std::make_unique<PlainChannel>(fd())),
      membership_(membership),
      frames_(frames),
      state_(State::greeting) {}

Stream::Stream(std::uint64_t id, Descriptor socket, const Membership& membership, Frames& frames, int to,
               Purpose purpose)
    : Stream(id, std::move(socket), membership, frames) {
  state_ = State::connecting;
  dialed_ = true;
  peer_ = to;
  std::memcpy(hello_.magic, magic, sizeof magic);
  hello_.build = this_build();
  hello_.from = membership.rank;
  hello_.to = to;
  hello_.world = membership.world;
  hello_.purpose = static_cast<std::uint32_t>(purpose);
  copy_to(hello_.group, membership.group);
  copy_to(hello_.nonce, random_bytes(sizeof hello_.nonce));
}

Proof Stream::proof() const {
  return {membership_.secret, bytes_of(hello_) + bytes_of(answer_.nonce)};
}

// Short enough to fit at once into an empty connection.
bool Stream::say(const void* bytes, std::size_t count) {
  return ::send(fd(), bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(count) || hang_up();
}

bool Stream::hang_up() {
  ended_ = true;
  return fail("hung up before it proved to be a rank of this job");
}

// Never reads more than `count` bytes, because frames follow. `otherwise` describes the problem if it does
// not begin as all ranks do.
bool Stream::hear(void* value, std::size_t count, const char* otherwise) {
  char bytes[sizeof(Hello)];
  const ssize_t got = ::recv(fd(), bytes, count - heard_.size(), MSG_DONTWAIT);
  if (got > 0) {
    heard_.append(bytes, static_cast<std::size_t>(got));
  } else if (got == 0 || errno == ECONNRESET) {
    hang_up();
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    fail(std::strerror(errno));
  }
  if ((otherwise && !begins_well(otherwise)) || heard_.size() < count) return false;
  std::memcpy(value, heard_.data(), count);
  heard_.clear();
  return true;
}

bool Stream::connect_further() {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return fail(std::strerror(error));
  sockaddr_storage unused;
  socklen_t unused_length = sizeof unused;
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&unused), &unused_length) != 0) return false;  // not yet
  if (!say(&hello_, sizeof hello_)) return false;
  state_ = State::answering;
  return true;
}

// Checks what has arrived so far. The last letter is the protocol's number.
bool Stream::begins_well(const char* otherwise) {
  constexpr std::size_t letters = sizeof magic - 1;
  if (std::memcmp(heard_.data(), magic, std::min(heard_.size(), letters)) != 0) return fail(otherwise);
  const bool same_protocol = heard_.size() <= letters || heard_[letters] == magic[letters];
  return broken_.empty() && (same_protocol || fail(mismatch({"an older or newer one"})));
}

bool Stream::read_hello() {
  if (!hear(&hello_, sizeof hello_, "did not greet as a rank does")) return false;
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  if (hello_.build != this_build()) return fail(mismatch(hello_.build));
  if (std::memcmp(hello_.group, membership_.group.data(), sizeof hello_.group) != 0) {
    return fail("belongs to another job, or another communicator");
  }
  if (hello_.world != membership_.world || hello_.to != membership_.rank) {
    return fail("asked for rank " + number(hello_.to) + " of " + number(hello_.world) +
                ", but this is rank " + number(membership_.rank) + " of " + number(membership_.world));
  }
  if (hello_.from < 0 || hello_.from >= membership_.world || hello_.from == membership_.rank) {
    return fail("claims to be rank " + number(hello_.from));
  }
  if (hello_.purpose > static_cast<std::uint32_t>(Purpose::pulse)) {
    return fail("has an unknown purpose: " + number(hello_.purpose));
  }
  std::memcpy(answer_.magic, magic, sizeof magic);
  copy_to(answer_.nonce, random_bytes(sizeof answer_.nonce));
  answer_.proof = proof().of("accept");
  state_ = State::proving;
  return say(&answer_, sizeof answer_);
}

bool Stream::read_answer() {
  if (!hear(&answer_, sizeof answer_, "does not listen there: the answer does not come from a rank"))
    return false;
  if (!proof().holds("accept", answer_.proof)) return fail(wrong_secret);
  const LastWord last{mark, proof().of("dial")};
  state_ = State::securing;
  return say(&last, sizeof last);
}

// Skips the beats of a pulse whose other end may have waited long for an answer. One piece at a time, because
// others must be served and the stranger's time is limited. True once the next byte is not a beat; while
// there is none, it may still be one.
bool Stream::skip_beats() {
  char beats[4096];
  const ssize_t here = ::recv(fd(), beats, sizeof beats, MSG_DONTWAIT | MSG_PEEK);
  const bool later = here < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  const auto* end = here > 0 ? static_cast<const char*>(std::memchr(beats, mark, here)) : nullptr;
  const std::size_t before = end ? end - beats : std::max<ssize_t>(here, 0);
  if (before > 0) ::recv(fd(), beats, before, MSG_DONTWAIT);
  skipped_ += before;
  if (skipped_ > most_beats) fail("sent too much before it proved to be a rank of this job");
  return end || (here <= 0 && !later);
}

bool Stream::read_proof() {
  LastWord last;
  if (purpose() == Purpose::pulse && heard_.empty() && !skip_beats()) return false;
  if (!hear(&last, sizeof last)) return false;
  if (last.begins != mark || !proof().holds("dial", last.digest)) return fail(wrong_secret);
  peer_ = hello_.from;
  state_ = State::securing;
  return true;
}

// A pulse carries nothing worth reading or changing, and must beat while the peer does not answer.
bool Stream::secure() {
  if (membership_.guard == Guard::tls && purpose() == Purpose::frames && !secured_) {
    channel_ = std::make_unique<TlsChannel>(fd(), dialed_, tls_key(membership_.secret, "frames"));
    secured_ = true;
  }
  if (channel_->open() == 1) {
    state_ = State::ready;
    return true;
  }
  if (errno == ECONNRESET || errno == EPIPE) {
    hang_up();
  } else if (errno != EAGAIN) {
    fail("failed the TLS handshake (" + channel_->why() + ")");
  }
  return false;
}

bool Stream::go_further() {
  switch (state_) {
    case State::connecting:
      return connect_further();
    case State::greeting:
      return read_hello();
    case State::answering:
      return read_answer();
    case State::proving:
      return read_proof();
    case State::securing:
      return secure();
    case State::ready:
      return false;
  }
  return false;
}

bool Stream::shake_hands() {
  bool moved = false;
  while (broken_.empty() && go_further()) moved = true;
  return moved;
}

}  // namespace ringreduce
