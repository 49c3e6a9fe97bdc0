// How the streams of TcpTransport come to be and end: dialing, silent peers. Of those who come:
// accepting.cpp.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp/tcp.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

// Together with the silence after which a peer is looked after, below a second.
constexpr milliseconds unreachable_after{600};
constexpr milliseconds beat_every{100};
constexpr milliseconds stranger_has{5000};
constexpr milliseconds retry_after{50};
constexpr int most_hang_ups = 20;

void set(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

// So that the system itself finds out when the peer's does not answer any more. Only where next to nothing is
// sent: a peer that reads nothing for a while would be taken for a dead one.
void set_pulse(int fd) {
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(unreachable_after.count()));
}

}  // namespace

// --- dialing ---------------------------------------------------------------------------------------------

void TcpTransport::dial(int peer, Purpose purpose) {
  Link& link = links_[peer];
  const std::vector<Address>& addresses = settings_.addresses[peer];
  if (addresses.empty()) return lost(peer, "cannot be reached: no address of it serves here");
  const Address& address = addresses[std::min(link.next, addresses.size() - 1)];
  sockaddr_storage storage;
  const socklen_t length = to_socket(address, storage);
  Descriptor socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw Error(std::string("no socket can be opened: ") + std::strerror(errno));
  set(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (purpose == Purpose::pulse) set_pulse(socket.get());
  const int result = connect(socket.get(), reinterpret_cast<const sockaddr*>(&storage), length);
  if (result != 0 && errno != EINPROGRESS) return try_next(peer, purpose, std::strerror(errno));
  Stream& stream =
      add(std::make_unique<Stream>(next_id_++, std::move(socket), settings_.membership, peer, purpose), true);
  if (purpose == Purpose::pulse) {
    link.pulse = &stream;
  } else {
    ++link.dialing;
  }
}

void TcpTransport::dial_failed(Stream& stream) {
  Link& link = links_[stream.peer()];
  const bool was_pulse = stream.purpose() == Purpose::pulse;
  if (was_pulse) {
    link.pulse = nullptr;
  } else {
    --link.dialing;
  }
  if (is_lost(stream.peer()) || has_said_bye(stream.peer())) return;
  if (!stream.ended()) {
    try_next(stream.peer(), stream.purpose(), stream.broken());
  } else if (++link.hang_ups <= most_hang_ups) {
    // It may have had too many strangers at the door.
    link.problem = stream.broken();
    if (!was_pulse) link.retry = Clock::now() + retry_after;
  } else {
    lost(stream.peer(), stream.broken());
  }
}

void TcpTransport::try_next(int peer, Purpose purpose, const std::string& problem) {
  Link& link = links_[peer];
  link.problem = problem;
  if (link.ready.empty() && ++link.next < settings_.addresses[peer].size()) return dial(peer, purpose);
  link.next = 0;
  const bool refused = problem == std::strerror(ECONNREFUSED);
  lost(peer, refused ? "has closed its communicator or died (" + problem + ")"
                     : "cannot be reached (" + problem + ")");
}

void TcpTransport::begin(Stream& stream) {
  if (!stream.dialed()) --strangers_;
  Link& link = links_[stream.peer()];
  connected_to(stream.peer());
  if (stream.purpose() == Purpose::pulse) return;
  if (stream.dialed()) --link.dialing;
  link.hang_ups = 0;
  link.ready.push_back(&stream);
  dispatch(stream.peer());
}

// --- ending ----------------------------------------------------------------------------------------------

void TcpTransport::bury() {
  looked_for_broken_ = false;
  std::vector<Stream*> dead;
  for (const auto& [id, stream] : streams_) {
    if (!stream->broken().empty()) dead.push_back(stream.get());
  }
  for (Stream* stream : dead) bury(*stream);
}

void TcpTransport::bury(Stream& buried) {
  const auto found = streams_.find(buried.id);
  const std::unique_ptr<Stream> stream = std::move(found->second);
  streams_.erase(found);
  if (!stream->proved()) {
    if (stream->dialed()) return dial_failed(*stream);
    --strangers_;
    // A rank may close while it still dials.
    const bool knew_the_job = stream->state() == Stream::State::proving;
    if (!(knew_the_job && stream->ended())) complain(*stream);
    return;
  }
  const int peer = stream->peer();
  Link& link = links_[peer];
  if (stream->purpose() == Purpose::pulse) {
    if (!stream->dialed()) return;
    link.pulse = nullptr;
    if (has_said_bye(peer)) return;
    return lost(peer, stream->ended() && link.ready.empty() ? "has closed its communicator or died"
                                                            : stream->broken());
  }
  std::erase(link.ready, stream.get());
  stream->forget(*this, pool_);
  // What it said last may come over another stream.
  if (!has_said_bye(peer)) lost(peer, stream->broken());
  dispatch(peer);
}

// --- time ------------------------------------------------------------------------------------------------

void TcpTransport::look_at_clock(Clock::time_point now) {
  clock_looked_ = now;
  std::vector<Stream*> late;
  for (const auto& [id, stream] : streams_) {
    if (stream->proved()) continue;
    const bool connecting = stream->state() == Stream::State::connecting;
    const bool over = stream->dialed() ? connecting && now - stream->since > unreachable_after
                                       : now - stream->since > stranger_has;
    if (over) late.push_back(stream.get());
  }
  for (Stream* stream : late) {
    if (stream->dialed()) {
      stream->give_up("no answer");
    } else {
      serve(*stream);  // what it has to say may have waited for us
      if (stream->proved() && stream->broken().empty()) continue;
    }
    bury(*stream);
  }
  for (int peer = 0; peer < world; ++peer) {
    Link& link = links_[peer];
    if (!link.retry || now < *link.retry) continue;
    link.retry.reset();
    dispatch(peer);
  }
}

void TcpTransport::look_after(int peer) {
  if (peer == rank || is_lost(peer) || has_said_bye(peer) || closed_) return;
  Link& link = links_[peer];
  const auto now = Clock::now();
  if (!link.pulse) {
    if (now - link.beat < beat_every) return;
    link.beat = now;
    return dial(peer, Purpose::pulse);
  }
  if (link.pulse->state() == Stream::State::connecting || now - link.beat < beat_every) return;
  link.beat = now;
  link.pulse->beat();
  if (!link.pulse->broken().empty()) looked_for_broken_ = true;
}

}  // namespace ringreduce
