#include "fronts/nccl/meeting.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fronts/nccl/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce::nccl_api {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds dial_for{3000};
constexpr int dials = 3;

// 0: timeout.
int wait_for(int fd, short events, Clock::duration limit) {
  const auto left = std::chrono::ceil<milliseconds>(limit);
  pollfd one{fd, events, 0};
  int ready = 0;
  do {
    ready = poll(&one, 1, static_cast<int>(std::max<milliseconds::rep>(left.count(), 0)));
  } while (ready < 0 && errno == EINTR);
  return ready;
}

}  // namespace

void send_all(int fd, std::string_view bytes, Clock::time_point until) {
  while (!bytes.empty() && Clock::now() < until) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      wait_for(fd, POLLOUT, until - Clock::now());
    } else if (errno != EINTR) {
      return;  // what the other end said before it hung up can still be read
    }
  }
}

Proof proof_over(const Invitation& invitation, const Greeting& greeting, const Answer& answer) {
  return {bytes_of(invitation.secret), bytes_of(greeting) + bytes_of(answer.nonce)};
}

Seat::Seat(const Invitation& invitation, int rank, int world) : rank_(rank), world_(world) {
  std::string tried;
  for (int attempt = 0; attempt < dials; ++attempt) {
    tried.clear();
    for (const Address& address : invitation.addresses) {
      if (address.family == 0) continue;
      if (dial(address)) {
        greet(invitation);
        return;
      }
      tried += (tried.empty() ? "" : ", ") + in_words(address) + " (" + problem_ + ")";
    }
  }
  throw Refusal(nccl::remote_error,
                "cannot reach the process that made the unique id at " + tried + ": it may have ended");
}

bool Seat::dial(const Address& address) {
  sockaddr_storage storage;
  const socklen_t length = to_socket(address, storage);
  socket_ = Descriptor(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = 0;
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) error = errno;
  if (error == EINPROGRESS) {
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (wait_for(socket_.get(), POLLOUT, dial_for) > 0) {
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  const int yes = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  problem_ = std::strerror(error);
  return error == 0;
}

void Seat::greet(const Invitation& invitation) {
  Greeting greeting{};
  std::memcpy(greeting.magic, invitation.magic, sizeof greeting.magic);
  greeting.build = this_build();
  greeting.rank = rank_;
  greeting.world = world_;
  std::memcpy(greeting.nonce, random_bytes(sizeof greeting.nonce).data(), sizeof greeting.nonce);
  send_all(socket_.get(), bytes_of(greeting), until_);
  Answer answer{};
  hear(&answer, sizeof answer);
  const Proof proof = proof_over(invitation, greeting, answer);
  if (!proof.holds("accept", answer.proof)) {
    throw Refusal(nccl::remote_error, "another program listens where the unique id was made");
  }
  send_all(socket_.get(), bytes_of(proof.of("dial")), until_);
}

void Seat::hear(void* bytes, std::size_t count) {
  auto* at = static_cast<char*>(bytes);
  while (count > 0) {
    if (wait_for(socket_.get(), POLLIN, until_ - Clock::now()) == 0) {
      throw Refusal(nccl::remote_error, "the process that made the unique id does not answer");
    }
    const ssize_t got = ::recv(socket_.get(), at, count, 0);
    if (got > 0) {
      at += got;
      count -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw Refusal(nccl::remote_error, "the process that made the unique id closed the connection");
    }
  }
}

std::vector<std::string> Seat::exchange(const std::string& blob) {
  const Frame mine{Frame::blob, static_cast<std::uint32_t>(blob.size())};
  send_all(socket_.get(), bytes_of(mine) + blob, until_);
  std::vector<std::string> all;
  while (static_cast<int>(all.size()) < world_) {
    Frame frame{};
    hear(&frame, sizeof frame);
    if (frame.bytes > longest_blob) throw Refusal(nccl::internal_error, "received a blob that is too long");
    std::string bytes(frame.bytes, '\0');
    hear(bytes.data(), bytes.size());
    if (frame.kind == Frame::failure) throw Refusal(nccl::invalid_usage, bytes);
    all.push_back(std::move(bytes));
  }
  return all;
}

}  // namespace ringreduce::nccl_api
