// How a rank reaches a peer: which of its addresses answers, and when the peer counts as gone.
//
// A host that is gone answers nothing, and one lost packet must not look like that. The system resends the
// first packet of a connection only after a second, and once more after three: a dial has time for both. But
// a pulse looks after a peer that is waited for, and must decide within a second. It therefore makes several
// attempts: only a host that answers none of them is gone.
//
// Only the answer to a hello shows that the other end is the peer, and a rank that computes gives none. An
// unanswered connection therefore proves nothing: another program may listen where a rank was before it died.
// For this reason every rank is connected with its neighbours from the beginning, when all of them answer. A
// neighbour's death ends the connection, and a rank that notices tells those that it is connected with.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/tcp/tcp.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

// Together with the silence before a pulse begins, less than a second.
constexpr milliseconds unreachable_after{600};
constexpr milliseconds two_retransmissions{3500};
constexpr milliseconds next_address_after{50};
constexpr milliseconds same_address_after{150};
constexpr milliseconds refusal_is_final{250};  // another address may be the right one
constexpr milliseconds neighbours_have{200};   // to answer when the ranks meet
constexpr milliseconds dial_again_after{50}, widen_again_after{1000};
constexpr int most_hang_ups = 20;

void set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

// Makes the system find out when the peer's system stops answering. Only for connections that carry next to
// nothing: otherwise a peer that reads nothing for a while would count as dead.
void set_pulse(int fd) {
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(unreachable_after.count()));
}

}  // namespace

// World 2 has one pair.
void TcpTransport::meet_neighbours() {
  if (world < 2) return;
  Lock lock(mutex_);
  const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
  if (world > 2 || rank == 0) dial(next, Purpose::frames);
  const auto until = Clock::now() + neighbours_have;
  while ((!connected(next) || !connected(previous)) && Clock::now() < until) progress(lock, milliseconds(1));
  if (!connected(next)) give_up(next, Purpose::frames);
}

void TcpTransport::dial(int peer, Purpose purpose) {
  Dial& dial = dial_of(peer, purpose);
  if (!dial.attempts.empty()) return;
  if (settings_.addresses[peer].empty()) {
    return control_.lost(
        peer, "cannot be reached: it listens on its loopback interface only (RINGREDUCE_IFACE)", false);
  }
  dial = {};
  dial.route = links_[peer].route;
  dial.until = Clock::now() + (purpose == Purpose::pulse ? unreachable_after : two_retransmissions);
  attempt(peer, purpose);
}

void TcpTransport::attempt(int peer, Purpose purpose) {
  Dial& dial = dial_of(peer, purpose);
  const std::vector<Address>& addresses = settings_.addresses[peer];
  const std::size_t route = (dial.route + dial.begun++) % addresses.size();
  dial.latest = Clock::now();
  sockaddr_storage storage;
  const socklen_t length = to_socket(addresses[route], storage);
  Descriptor socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    if (!dial.attempts.empty()) return;
    if (++links_[peer].hang_ups <= most_hang_ups) {
      links_[peer].retry = Clock::now() + dial_again_after;
      return;
    }
    return control_.lost(rank,
                         "cannot open a connection to rank " + std::to_string(peer) + " (" +
                             std::strerror(errno) + "): raise the limit of open files, ulimit -n",
                         false);
  }
  set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (purpose == Purpose::pulse) set_pulse(socket.get());
  const int result = connect(socket.get(), reinterpret_cast<const sockaddr*>(&storage), length);
  if (result != 0 && errno != EINPROGRESS) return attempt_failed(peer, purpose, std::strerror(errno), false);
  Stream& stream = add(
      std::make_unique<Stream>(next_id_++, std::move(socket), settings_.membership, frames_, peer, purpose),
      true);
  stream.route = route;
  dial.attempts.push_back(&stream);
}

// `met`: the problem comes from the other end, not from the system.
void TcpTransport::attempt_failed(int peer, Purpose purpose, const std::string& problem, bool met) {
  Dial& dial = dial_of(peer, purpose);
  const bool refused = problem == std::strerror(ECONNREFUSED);
  if (met) {
    dial.problem = problem;
  } else if (refused) {
    dial.problem = "has closed its communicator or died (" + problem + ")";
    dial.until = std::min(dial.until, Clock::now() + refusal_is_final);
    ++dial.refusals;
  } else if (dial.problem.empty()) {
    dial.problem = "cannot be reached (" + problem + ")";
  }
  if (dial.begun < settings_.addresses[peer].size()) return attempt(peer, purpose);
  if (dial.attempts.empty()) give_up(peer, purpose);
}

// Keeps the first connection. Others that have come as far leave like ranks.
void TcpTransport::connected(Stream& stream) {
  const int peer = stream.peer();
  Dial& dial = dial_of(peer, stream.purpose());
  links_[peer].route = stream.route;
  for (Stream* other : std::exchange(dial.attempts, {&stream})) {
    if (other == &stream) continue;
    other->shake_hands();
    streams_.erase(other->id);
  }
  // Packets that have not arrived by now are lost.
  const auto& frames = dial_of(peer, Purpose::frames).attempts;
  const bool late = !frames.empty() && frames[0]->state() == Stream::State::connecting;
  if (stream.purpose() == Purpose::pulse && late) attempt(peer, Purpose::frames);
}

void TcpTransport::dial_failed(Stream& stream) {
  const int peer = stream.peer();
  Link& link = links_[peer];
  Dial& dial = dial_of(peer, stream.purpose());
  const bool met = stream.state() != Stream::State::connecting;
  std::erase(dial.attempts, &stream);
  if (control_.has_left(peer)) return;
  if (!stream.ended()) return attempt_failed(peer, stream.purpose(), stream.broken(), met);
  if (!dial.attempts.empty()) return;
  // It may have had too many strangers.
  if (++link.hang_ups > most_hang_ups) return control_.lost(peer, stream.broken(), false);
  if (stream.purpose() == Purpose::frames) link.retry = Clock::now() + dial_again_after;
}

// A dial that nothing needs may fail, because the peer may have closed by then. Existing connections show
// better than another one whether the peer lives.
void TcpTransport::give_up(int peer, Purpose purpose) {
  Link& link = links_[peer];
  const Dial dial = std::exchange(dial_of(peer, purpose), {});
  for (Stream* attempt : dial.attempts) streams_.erase(attempt->id);
  if (control_.has_left(peer)) return;
  if (purpose == Purpose::frames && connected(peer)) {
    link.retry = Clock::now() + widen_again_after;
  } else if (purpose == Purpose::pulse || frames_.outbox.has_frames(peer)) {
    std::string text = dial.problem.empty() ? "cannot be reached (no answer)" : dial.problem;
    const char* before = " at ";
    for (const Address& tried : settings_.addresses[peer])
      text += std::exchange(before, ", ") + in_words(tried);
    // Where an address is silent, another one that refuses may be that of another host.
    control_.lost(peer, text, dial.attempts.empty() && dial.refusals == dial.begun);
  }
}

void TcpTransport::look_at_dial(int peer, Purpose purpose, Clock::time_point now) {
  const Dial& dial = dial_of(peer, purpose);
  if (dial.attempts.empty() || dial.attempts[0]->state() != Stream::State::connecting) return;
  if (now >= dial.until) return give_up(peer, purpose);
  const bool others = dial.begun < settings_.addresses[peer].size();
  if (!others && purpose != Purpose::pulse) return;
  if (now - dial.latest >= (others ? next_address_after : same_address_after)) attempt(peer, purpose);
}

}  // namespace ringreduce
