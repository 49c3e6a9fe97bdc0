// How the streams of TcpTransport work.
#include "transport/tcp/tcp.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "transport/interface/thread.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t read_at_once = 256 << 10;  // bytes, before it is others' and the reader's turn
constexpr milliseconds look_at_clock_every{20};
constexpr milliseconds measure_every{100};
constexpr double bytes_per_stream = 384 << 10;  // of the bytes in flight
constexpr int most_streams = 8;
constexpr std::uint32_t far_us = 20'000;  // the round trip to a peer that is far away
constexpr std::uint64_t of_no_stream = ~std::uint64_t{0};
// A peer that was answered after a longer absence of the rank may no longer wait for its proof.
constexpr milliseconds believed_for{2500};

tcp_info info_of(const Stream& stream) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(stream.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return info;
}

// The bytes in flight: bandwidth times delay.
double under_way(const tcp_info& info) {
  return static_cast<double>(info.tcpi_delivery_rate) * info.tcpi_min_rtt * 1e-6;
}

}  // namespace

TcpTransport::TcpTransport(const char* name, int rank, int world, Settings settings)
    : RemoteTransport(name, rank, world, settings.oversubscribed),
      settings_(std::move(settings)),
      links_(static_cast<std::size_t>(world)) {
  facts_.distant = settings_.distant;
  epoll_event event{EPOLLIN, {.u64 = 0}};
  for (const Listener& listener : settings_.listeners) {
    epoll_ctl(settings_.epoll.get(), EPOLL_CTL_ADD, listener.socket.get(), &event);
  }
  event.data.u64 = 1;
  epoll_ctl(settings_.epoll.get(), EPOLL_CTL_ADD, settings_.event.get(), &event);
}

void TcpTransport::watch(int descriptor) {
  epoll_event event{EPOLLIN, {.u64 = of_no_stream}};
  epoll_ctl(settings_.epoll.get(), EPOLL_CTL_ADD, descriptor, &event);
}

Stream& TcpTransport::add(std::unique_ptr<Stream> stream, bool connecting) {
  Stream& added = *stream;
  epoll_event event{EPOLLIN, {.u64 = added.id}};
  if (connecting) event.events |= EPOLLOUT;
  added.watched = connecting;
  epoll_ctl(settings_.epoll.get(), EPOLL_CTL_ADD, added.fd(), &event);
  streams_.emplace(added.id, std::move(stream));
  return added;
}

// Watches for becoming writable only while that must be awaited.
void TcpTransport::watch(Stream& stream) {
  const bool wanted = (stream.blocked() && !stream.mute()) || stream.state() == Stream::State::connecting;
  if (wanted == stream.watched) return;
  epoll_event event{EPOLLIN, {.u64 = stream.id}};
  if (wanted) event.events |= EPOLLOUT;
  epoll_ctl(settings_.epoll.get(), EPOLL_CTL_MOD, stream.fd(), &event);
  stream.watched = wanted;
}

void TcpTransport::dispatch(int peer) {
  if (control_.has_left(peer)) return frames_.discard(peer);
  Link& link = links_[peer];
  bool all_blocked = true;
  for (Stream* stream : link.ready) {
    if (!stream->blocked()) {
      stream->write();
      watch(*stream);
    }
    if (!stream->broken().empty()) looked_for_broken_ = true;
    all_blocked = all_blocked && stream->blocked();
  }
  if (!frames_.outbox.has_frames(peer) || !all_blocked || link.retry || closed_) return;
  if (static_cast<int>(link.ready.size()) < streams_wanted(link)) dial(peer, Purpose::frames);
}

// Frames go to the first stream that accepts them.
void TcpTransport::share_among_streams(Stream& stream) {
  if (info_of(stream).tcpi_rtt >= far_us) stream.hold_little();
}

// As many streams as the bytes in flight need. After a pause, or a loss, each stream starts slowly, but
// regains its share sooner than one stream would regain the whole. Where packets are lost far from here, the
// rate of a stream says nothing about the wire, so every loss calls for one more.
int TcpTransport::streams_wanted(Link& link) {
  if (link.ready.empty()) return 1;
  if (settings_.streams > 0) return settings_.streams;
  const auto now = Clock::now();
  if (now - link.measured < measure_every) return link.wanted;
  link.measured = now;
  double bytes = 0;
  std::uint64_t lost = 0;
  bool far = false;
  for (const Stream* stream : link.ready) {
    const tcp_info info = info_of(*stream);
    bytes += under_way(info);
    lost += info.tcpi_total_retrans;
    far = far || info.tcpi_min_rtt >= far_us;
  }
  int wanted = static_cast<int>(std::ceil(bytes / bytes_per_stream));
  if (far && lost > link.lost) wanted = std::max(wanted, static_cast<int>(link.ready.size()) + 1);
  link.lost = lost;
  link.wanted = std::clamp(wanted, link.wanted, most_streams);
  return link.wanted;
}

bool TcpTransport::serve(Stream& stream) {
  bool moved = false;
  if (!stream.proved()) {
    const bool connecting = stream.state() == Stream::State::connecting;
    if (stream.state() == Stream::State::answering && Clock::now() - clock_looked_ > believed_for) {
      stream.hang_up();
    }
    moved = stream.shake_hands();
    if (connecting && stream.state() != Stream::State::connecting) connected(stream);
    if (stream.proved()) begin(stream);
  }
  if (stream.proved() && stream.broken().empty()) {
    moved |= stream.read(read_at_once);
    if (stream.damage() == Stream::Damage::here) report_damage(rank, stream.peer());
    if (stream.damage() == Stream::Damage::there) report_damage(stream.peer(), rank);
    if (stream.blocked() || frames_.outbox.has_frames(stream.peer())) {
      stream.unblock();
      if (stream.purpose() == Purpose::frames) moved |= stream.write();
    }
  }
  if (!stream.broken().empty()) {
    looked_for_broken_ = true;
  } else {
    watch(stream);
  }
  return moved;
}

bool TcpTransport::progress(Lock& lock, Clock::duration limit) {
  constexpr int most = 64;
  epoll_event events[most];
  if (closed_) return false;
  if (looked_for_broken_) bury();
  int wait = 0;
  if (shut_until_) {
    const auto left = *shut_until_ - Clock::now();
    if (left <= Clock::duration::zero()) turn_door(true);
    limit = std::min(limit, std::max<Clock::duration>(left, milliseconds(1)));
  }
  if (limit > Clock::duration::zero()) {
    wait = static_cast<int>(std::chrono::ceil<milliseconds>(limit).count());
    ++waiting_;
    lock.unlock();
  }
  const int count = epoll_wait(settings_.epoll.get(), events, most, wait);
  if (wait > 0) {
    lock.lock();
    --waiting_;
    if (closed_) close_descriptors();
  }
  bool moved = false;
  for (int i = 0; i < count && !closed_; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == 0) {
      accept_some();
    } else if (id == 1) {
      eventfd_t unused;
      eventfd_read(settings_.event.get(), &unused);
    } else if (const auto found = streams_.find(id); found != streams_.end()) {
      moved |= serve(*found->second);
    }
  }
  if (looked_for_broken_) bury();
  if (control_.have_ended() && !began_anew_) begin_anew();
  const auto now = Clock::now();
  if (now - clock_looked_ >= look_at_clock_every) look_at_clock(now);
  return moved;
}

void TcpTransport::report_damage(int receiver, int sender) {
  if (control_.have_ended()) return;
  control_.end_all(Failure(
      Cause::damaged, -1,
      "rank " + std::to_string(receiver) + " received a damaged frame from rank " + std::to_string(sender) +
          ": bytes changed on the way, so the call ended on all ranks. Look for a faulty "
          "link between their hosts, or for someone who tampers with the traffic"));
}

// Survivors use new connections, because the other end no longer trusts a damaged one, and does not say which
// one that is.
void TcpTransport::begin_anew() {
  began_anew_ = true;
  if (fate().failure()->cause != Cause::damaged) return;
  for (int peer = 0; peer < world; ++peer) {
    for (Stream* stream : links_[peer].ready) stream->retire();
    links_[peer].ready.clear();
    dispatch(peer);
  }
}

void TcpTransport::interrupt() {
  if (settings_.event.get() >= 0) eventfd_write(settings_.event.get(), 1);
}

void TcpTransport::withdraw() {
  for (const auto& [id, stream] : streams_) stream->withdraw();
}

// Runs in a thread of its own, because a rank that has failed may not return for long. If there can be none,
// they are answered when it does.
void TcpTransport::answer_latecomers() {
  if (closed_ || latecomers_.joinable()) return;
  const auto answer = [this] {
    try {
      for (Lock lock(mutex_); !closed_;) {
        sleep(lock, milliseconds(20));
        lock.unlock();
        lock.lock();
      }
    } catch (const Error&) {  // nothing more can be done
    }
  };
  try {
    latecomers_ = thread_without_signals(answer);
  } catch (const Error&) {
  }
}

// --- the end ---------------------------------------------------------------------------------------------

// Bytes that are still here or in flight, to peers that can be reached.
std::size_t TcpTransport::not_there_yet() const {
  std::size_t bytes = 0;
  for (const auto& [id, stream] : streams_) {
    int unsent = 0;
    if (!stream->proved() || control_.is_lost(stream->peer())) continue;
    ioctl(stream->fd(), SIOCOUTQ, &unsent);
    bytes += stream->queued() + static_cast<std::size_t>(unsent) + frames_.outbox.has_frames(stream->peer());
  }
  return bytes;
}

// Closing a socket that holds unread bytes resets it, which may lose what we sent last. All bytes must
// therefore arrive first, however slow the way is, as long as they move. Unread data is useless by now: a
// successful call leaves nothing behind.
void TcpTransport::see_off(Lock& lock) {
  constexpr milliseconds at_rest{1500};
  control_.say_bye();
  auto moved = Clock::now();
  for (std::size_t left = not_there_yet(); left > 0 && Clock::now() - moved < at_rest;) {
    progress(lock, milliseconds(2));
    const std::size_t before = std::exchange(left, not_there_yet());
    if (left != before) moved = Clock::now();
  }
}

// The last thread that waits on them closes them: the program may keep what it has closed.
void TcpTransport::close_descriptors() {
  if (waiting_ > 0) return;
  settings_.epoll.reset();
  settings_.event.reset();
}

void TcpTransport::close() {
  if (disowned_) return;
  {
    Lock lock(mutex_);
    if (closed_) return;
    control_.let_go_of_callers();
    see_off(lock);
    closed_ = true;
    for (const auto& [id, stream] : streams_) stream->forget();
    for (Link& link : links_) link = {};
    streams_.clear();
    settings_.listeners.clear();
    close_descriptors();
  }
  wake();
  if (latecomers_.joinable()) latecomers_.join();
}

}  // namespace ringreduce
