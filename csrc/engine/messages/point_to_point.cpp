#include "engine/messages/point_to_point.h"

#include <algorithm>

#include "reduce/reduce.h"

namespace ringreduce {
namespace {

constexpr std::size_t line = 64;  // bytes
constexpr std::size_t largest_whole = 64 << 10;
constexpr std::size_t smallest_slice = 32 << 10, largest_slice = 256 << 10;
constexpr std::size_t slices = 16;  // for a body that is copied through the lane, within these limits
void write(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) copy(&to, 1, from, bytes);
}

}  // namespace

PointToPoint::PointToPoint(Transport& transport)
    : transport_(transport),
      // Each lane holds four of them: in a quarter of capacity() and in the other three quarters.
      whole_(std::min(largest_whole, transport.facts().capacity / 16)),
      slice_(std::min(largest_slice, transport.facts().capacity / 16 * 3)),
      matching_(transport.world),
      peers_(transport.world) {}

bool PointToPoint::send_at_once(const Transfer& send) {
  std::lock_guard lock(mutex_);
  if (send.peer == transport_.rank) {
    send_to_self(send);
  } else if (!peers_[send.peer].sends.empty() || !send_whole(send)) {
    return false;
  }
  note_begun(send);
  return true;
}

RequestPointer PointToPoint::enqueue(const Transfer& transfer, Arrays arrays) {
  auto request = std::make_shared<Request>(transfer, std::move(arrays));
  std::lock_guard lock(mutex_);
  ++requests_;
  note_begun(transfer);
  if (transfer.sends) {
    peers_[transfer.peer].sends.push_back(request);
  } else if (const auto aside = matching_.take_aside(transfer.peer, transfer.tag)) {
    deliver(request, *aside, aside->data.get());
  } else {
    matching_.post(request);
  }
  return request;
}

bool PointToPoint::advance() {
  std::lock_guard lock(mutex_);
  return advance_all();
}

// Starts with another peer each time, so that none takes all the space in the lanes.
bool PointToPoint::advance_all() {
  if (requests_ == 0) return false;
  const int world = transport_.world;
  first_ = first_ + 1 < world ? first_ + 1 : 0;
  bool moved = false;
  for (int i = 0; i < world; ++i) {
    const int peer = first_ + i < world ? first_ + i : first_ + i - world;
    if (peer != transport_.rank) moved |= advance(peer);
  }
  return moved;
}

// Moves one message, or slice, in each direction, so that large ones take turns.
bool PointToPoint::advance(int p) {
  Peer& peer = peers_[p];
  bool moved = matching_.awaits(p) && read_message(p);
  if (!peer.sends.empty()) moved |= begin_sends(p);
  if (!peer.ready.empty()) moved |= say_ready(p);
  if (!peer.offered.empty() || !peer.incoming.empty()) moved |= read_bodies(p);
  if (!peer.outgoing.empty()) moved |= send_body(p);
  return moved;
}

bool PointToPoint::begin_sends(int p) {
  Peer& peer = peers_[p];
  Request& request = *peer.sends.front();
  if (send_whole(request.transfer)) {
    finish(request);
    peer.sends.pop_front();
    return true;
  }
  // Unread messages are also in front of an offer.
  constexpr int lane = Transport::point_to_point_lane;
  if (request.transfer.bytes() <= whole_ && !transport_.consumed(lane, p, transport_.sent(lane, p)))
    return false;
  if (!offer(request)) return false;
  peer.offered.splice(peer.offered.end(), peer.sends, peer.sends.begin());
  return true;
}

bool PointToPoint::send_whole(const Transfer& t) {
  const std::size_t bytes = t.bytes();
  if (bytes > whole_) return false;
  constexpr int lane = Transport::point_to_point_lane;
  const std::uint64_t contract = label(Piece::whole, static_cast<std::uint32_t>(t.tag), t.dtype);
  if (bytes < CopyToReader::past_from) return transport_.send(lane, {&t.peer, 1}, t.data, bytes, contract);
  std::byte* room = transport_.reserve(lane, {&t.peer, 1}, bytes);
  if (!room) return false;
  peers_[t.peer].copy_out(room, t.data, bytes);
  transport_.post(lane, {&t.peer, 1}, room, bytes, contract);
  return true;
}

bool PointToPoint::offer(Request& request) {
  const Transfer& t = request.transfer;
  Peer& peer = peers_[t.peer];
  const Offer words{t.count, peer.offers};
  const std::uint64_t contract = label(Piece::offer, static_cast<std::uint32_t>(t.tag), t.dtype);
  if (!transport_.send(Transport::point_to_point_lane, {&t.peer, 1}, &words, sizeof words, contract))
    return false;
  request.number = peer.offers++;
  request.lends = transport_.reachable(t.data, t.bytes());
  // Copies into the lane and out of it overlap by slices. What the peer reads in place is copied only once.
  request.slice =
      request.lends ? largest_slice
                    : std::clamp(t.bytes() / slices / line * line, std::min(smallest_slice, slice_), slice_);
  return true;
}

void PointToPoint::send_to_self(const Transfer& t) {
  const int self = transport_.rank;
  const auto* data = static_cast<const std::byte*>(t.data);
  Aside message{self, {t.tag, t.dtype, t.count}, nullptr, nullptr, {}};
  if (const RequestPointer receive = matching_.take_receive(self, t.tag)) {
    deliver(receive, message, data);
    if (receive->problem) std::rethrow_exception(receive->problem);
    return;
  }
  message.data = std::unique_ptr<std::byte[]>(new std::byte[t.bytes()]);
  write(message.data.get(), data, t.bytes());
  matching_.put_aside(std::move(message));
}

bool PointToPoint::say_ready(int p) {
  std::list<std::uint32_t>& ready = peers_[p].ready;
  bool moved = false;
  while (!ready.empty() &&
         transport_.send(Transport::body_lane, {&p, 1}, nullptr, 0, label(Piece::ready, ready.front()))) {
    ready.pop_front();
    moved = true;
  }
  return moved;
}

bool PointToPoint::send_body(int p) {
  constexpr int lane = Transport::body_lane;
  Requests& outgoing = peers_[p].outgoing;
  Request& request = *outgoing.front();
  const std::size_t total = request.transfer.bytes();
  if (request.moved < total) {
    const std::byte* data = static_cast<const std::byte*>(request.transfer.data) + request.moved;
    const std::size_t bytes = std::min(request.slice, total - request.moved);
    const std::uint64_t contract = label(Piece::body, request.number);
    if (request.lends) {
      // Two at a time: a sender whose peer is reading then only waits for one of them, and keeps its core.
      if (request.moved > 0 && !transport_.consumed(lane, p, request.last_part - 1)) return false;
      if (!transport_.lend(lane, {&p, 1}, data, bytes, contract, nullptr)) return false;
    } else {
      std::byte* room = transport_.reserve(lane, {&p, 1}, bytes);
      if (!room) return false;
      peers_[p].copy_out(room, data, bytes);
      transport_.post(lane, {&p, 1}, room, bytes, contract);
    }
    request.moved += bytes;
    request.last_part = transport_.sent(lane, p);
    if (request.lends || request.moved < total) return true;
  }
  if (request.lends && !transport_.consumed(lane, p, request.last_part)) return false;
  finish(request);
  outgoing.pop_front();
  return true;
}

bool PointToPoint::read_bodies(int p) {
  constexpr int lane = Transport::body_lane;
  Peer& peer = peers_[p];
  Message message;
  if (!transport_.poll(lane, p, message)) return false;
  const auto number = static_cast<std::uint32_t>(message.contract);
  const auto is_numbered = [&](const RequestPointer& request) { return request->number == number; };
  if (message.contract == label(Piece::ready, number)) {
    const auto request = std::find_if(peer.offered.begin(), peer.offered.end(), is_numbered);
    if (request != peer.offered.end()) {
      peer.outgoing.splice(peer.outgoing.end(), peer.offered, request);
      transport_.release(lane, p);
      return true;
    }
  } else if (!peer.incoming.empty() && is_numbered(peer.incoming.front()) &&
             message.contract == label(Piece::body, number)) {
    Request& request = *peer.incoming.front();
    const std::size_t total = request.transfer.bytes();
    if (message.bytes <= total - request.moved) {
      {
        const Access access(transport_);
        peer.copy_in(static_cast<std::byte*>(request.transfer.data) + request.moved, message.data,
                     message.bytes);
      }
      transport_.release(lane, p);
      request.moved += message.bytes;
      if (request.moved == total) {
        if (request.heir) {
          write(request.heir->transfer.data, request.memory.get(), total);
          finish(*request.heir);
        }
        finish(request);
        peer.incoming.pop_front();
      }
      return true;
    }
  }
  throw Failure(Cause::mismatch, p,
                "rank " + std::to_string(p) + " sent part of a message that rank " +
                    std::to_string(transport_.rank) + " does not expect");
}

bool PointToPoint::read_message(int p) {
  constexpr int lane = Transport::point_to_point_lane;
  Message message;
  if (!transport_.poll(lane, p, message)) return false;
  Aside aside{p, read_envelope(p, message), nullptr, nullptr, {}};
  if (const RequestPointer receive = matching_.take_receive(p, aside.envelope.tag)) {
    deliver(receive, aside, message.data);
  } else {
    if (aside.envelope.has_body) {
      aside.since = Clock::now();
    } else {
      aside.data = std::unique_ptr<std::byte[]>(new std::byte[message.bytes]);
      write(aside.data.get(), message.data, message.bytes);
    }
    matching_.put_aside(std::move(aside));
  }
  transport_.release(lane, p);
  return true;
}

void PointToPoint::deliver(const RequestPointer& receive, const Aside& message, const std::byte* data) {
  const Transfer& t = receive->transfer;
  const Envelope& envelope = message.envelope;
  receive->peer = message.source;
  if (envelope.dtype != t.dtype || envelope.count != t.count) {
    finish(*receive, std::make_exception_ptr(disagreement(message.source, envelope, t, transport_.rank)));
  } else if (envelope.has_body && !message.body) {
    await_body(receive, message.source, envelope.number);
  } else if (message.body && !message.body->done) {
    message.body->heir = receive;
  } else {
    write(t.data, message.body ? message.body->memory.get() : data, t.bytes());
    finish(*receive);
  }
}

void PointToPoint::await_body(const RequestPointer& request, int source, std::uint32_t number) {
  request->number = number;
  peers_[source].incoming.push_back(request);
  peers_[source].ready.push_back(number);
  say_ready(source);
}

void PointToPoint::finish(Request& request, std::exception_ptr problem) {
  request.problem = std::move(problem);
  request.arrays.reset();
  request.done.store(true, std::memory_order_release);
  --requests_;
  if (request.memory) --fetching_;
  transport_.wake();
}

}  // namespace ringreduce
