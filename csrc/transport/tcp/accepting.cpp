// How a rank accepts connections: from its peers, and from strangers, which must cost next to nothing.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>

#include "transport/interface/log.h"
#include "transport/tcp/tcp.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr int accept_at_once = 4;
constexpr int share_of_ranks = 7;  // of the time, while strangers get one
constexpr milliseconds look_for_room_every{100};
constexpr int most_strangers = 128;
constexpr int most_complaints = 10;

std::string other_end(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return "an unknown address";
  return in_words(from_socket(storage));
}

}  // namespace

// Strangers may come faster than they can be served. After every few of them, the rank accepts no more for
// several times as long as they took, which leaves most of the time to ranks.
void TcpTransport::accept_some() {
  const auto start = Clock::now();
  int came = 0, error = 0;
  for (const Listener& listener : settings_.listeners) {
    for (error = 0; error == 0 && came < accept_at_once; ++came) {
      Descriptor socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      error = socket.get() < 0 ? errno : 0;
      if (error == 0) admit(std::move(socket));
    }
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) break;
    error = 0;
  }
  if (error != 0 && !table_full_) {
    log::say(log::Level::warning, "rank " + std::to_string(rank),
             std::string("cannot accept connections: ") + std::strerror(error) +
                 " (raise the limit of open files, ulimit -n)");
  }
  table_full_ = error != 0;
  const auto now = Clock::now();
  shut_until_ = now + (table_full_ ? look_for_room_every : share_of_ranks * (now - start));
  turn_door(false);
}

void TcpTransport::turn_door(bool open) {
  epoll_event event{open ? EPOLLIN : 0u, {.u64 = 0}};
  for (const Listener& listener : settings_.listeners) {
    epoll_ctl(settings_.epoll.get(), EPOLL_CTL_MOD, listener.socket.get(), &event);
  }
  if (open) shut_until_.reset();
}

void TcpTransport::admit(Descriptor socket) {
  make_room_for_strangers();
  const bool room = strangers_ < most_strangers;
  ++strangers_;
  const int yes = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  Stream& stream =
      add(std::make_unique<Stream>(next_id_++, std::move(socket), settings_.membership, frames_), false);
  if (room) {
    serve(stream);
  } else {
    stream.give_up("came while too many other connections were waiting");
    bury(stream);
  }
}

// Drops the oldest stranger that has said nothing; ids only grow. One that was answered may be a rank that
// believes itself connected, and would take this rank for dead. A rank that is dropped earlier tries again.
void TcpTransport::make_room_for_strangers() {
  if (strangers_ < most_strangers) return;
  for (const auto& [id, stream] : streams_) {
    if (stream->state() != Stream::State::greeting) continue;
    bury(*stream);
    return;
  }
}

void TcpTransport::complain(const Stream& stream) {
  if (++complaints_ > most_complaints) return;
  log::say(log::Level::warning, "rank " + std::to_string(rank),
           "dropped a connection from " + other_end(stream.fd()) + ": it " +
               (stream.broken().empty() ? "was silent for too long" : stream.broken()) +
               (complaints_ == most_complaints ? " (further warnings of this kind are not shown)" : ""));
}

}  // namespace ringreduce
