#include "transport/remote/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ringreduce {

// --- sending ---------------------------------------------------------------------------------------------

bool Messages::has_room(int lane, Peers peers, std::size_t bytes) {
  return std::all_of(peers.begin(), peers.end(), [&](int peer) {
    const Out& o = out(lane, peer);
    // A peer may have finished with a message before the wire reports here that it was sent.
    return o.sent - o.released < window && o.sent - o.written < window &&
           (o.under_way == 0 || o.under_way + bytes <= window_bytes);
  });
}

int Messages::in_the_way(int lane, Peers peers) {
  const auto full = std::find_if(peers.begin(), peers.end(),
                                 [&](const int& peer) { return !has_room(lane, {&peer, 1}, 0); });
  if (full != peers.end()) return *full;
  if (!peers.empty()) return peers[0];
  const auto behind = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.outs[lane] && peer.outs[lane]->written != peer.outs[lane]->sent;
  });
  return behind == peers_.end() ? -1 : static_cast<int>(behind - peers_.begin());
}

Outgoing Messages::put(int lane, int peer, const void* data, std::size_t bytes, std::uint64_t contract,
                       Buffer* buffer) {
  Out& o = out(lane, peer);
  o.bytes[o.sent % window] = o.unwritten[o.sent % window] = static_cast<std::uint32_t>(bytes);
  o.under_way += bytes;
  FrameHeader header;
  header.bytes = header.whole = static_cast<std::uint32_t>(bytes);
  header.kind = FrameKind::message;
  header.lane = static_cast<std::uint8_t>(lane);
  header.number = ++o.sent;
  header.contract = contract;
  unwritten_[lane].store(unwritten_[lane].load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return {header, static_cast<const std::byte*>(data), buffer};
}

bool Messages::send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) {
  if (!has_room(lane, peers, bytes)) return false;
  for (int peer : peers) outbox_.send_copy(peer, put(lane, peer, data, bytes, contract, nullptr));
  return true;
}

std::byte* Messages::reserve(int lane, Peers peers, std::size_t bytes) {
  if (!has_room(lane, peers, bytes)) return nullptr;
  // With space for its header, so that both can go in one piece.
  bytes += sizeof(FrameHeader);
  // A reservation that was not posted is dropped.
  if (reserved_[lane] && reserved_[lane]->room < bytes) {
    outbox_.pool.release(reserved_[lane]);
    reserved_[lane] = nullptr;
  }
  if (!reserved_[lane]) reserved_[lane] = outbox_.pool.take(bytes);
  return reserved_[lane]->data;
}

void Messages::post(int lane, Peers peers, std::size_t bytes, std::uint64_t contract) {
  Buffer* buffer = std::exchange(reserved_[lane], nullptr);
  buffer->users = static_cast<int>(peers.size());
  for (int peer : peers) outbox_.send(peer, put(lane, peer, buffer->data, bytes, contract, buffer));
}

bool Messages::lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract) {
  if (!has_room(lane, peers, bytes)) return false;
  for (int peer : peers) outbox_.send(peer, put(lane, peer, data, bytes, contract, nullptr));
  return true;
}

std::uint32_t Messages::sent(int lane, int peer) const {
  const auto& out = peers_[peer].outs[lane];
  return out ? out->sent : 0;
}

bool Messages::consumed(int lane, int peer, std::uint32_t sent) {
  return static_cast<std::int32_t>(out(lane, peer).written - sent) >= 0;
}

void Messages::written(int peer, const FrameHeader& header) {
  Out& o = out(header.lane, peer);
  std::uint32_t& left = o.unwritten[(header.number - 1) % window];
  left -= header.bytes;
  if (left > 0) return;
  std::atomic<std::uint32_t>& unwritten = unwritten_[header.lane];
  unwritten.store(unwritten.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  o.done |= std::uint64_t{1} << (header.number - o.written - 1);
  for (; o.done & 1; o.done >>= 1) ++o.written;
}

void Messages::drop(int peer, const FrameHeader& header) {
  Out& o = out(header.lane, peer);
  const std::uint64_t bit = std::uint64_t{1} << (header.number % window);
  if (!(o.cut & bit)) ++o.dropped;
  o.cut |= bit;
  written(peer, header);
}

void Messages::hear_credit(int peer, const FrameHeader& header) {
  if (header.lane >= Transport::lanes) throw Error("credit for lane " + std::to_string(header.lane));
  Out& o = out(header.lane, peer);
  const auto news = static_cast<std::int32_t>(header.number - o.released);
  if (news > static_cast<std::int32_t>(o.sent - o.released)) throw Error("credit for more than was sent");
  for (; news > 0 && o.released != header.number; ++o.released) o.under_way -= o.bytes[o.released % window];
}

Messages::Counts Messages::sent_to(int peer) const {
  Counts sent{};
  for (int lane = 0; lane < Transport::lanes; ++lane) {
    const auto& out = peers_[peer].outs[lane];
    if (out) sent[lane] = out->sent - out->dropped;
  }
  return sent;
}

// --- receiving -------------------------------------------------------------------------------------------

void Messages::check(const FrameHeader& header) {
  if (header.lane >= Transport::lanes) throw Error("a message of lane " + std::to_string(header.lane));
  if (header.whole > window_bytes) throw Error("a message of " + std::to_string(header.whole) + " bytes");
  const std::size_t end = std::size_t{header.begin} + header.bytes;
  if (header.is_piece() ? header.bytes == 0 || end > header.whole : header.begin > 0) {
    throw Error("a piece that is not in its message");
  }
}

Landing Messages::land(int peer, const FrameHeader& header, Buffer* here) {
  check(header);
  In& i = in(header.lane, peer);
  const std::uint32_t ahead = header.number - i.received - 1;
  const Arrival& arrival = i.arrivals[(header.number - 1) % window];
  if (ahead >= window || arrival.complete || (arrival.landing.at && !header.is_piece())) {
    throw Error("message number " + std::to_string(header.number) + " after " + std::to_string(i.received));
  }
  return header.is_piece() ? land_piece(i, header) : landing_for(i, header, here);
}

Landing Messages::landing_for(In& in, const FrameHeader& header, Buffer* here) {
  const bool wanted = header.number == in.received + 1 && in.place.where && in.place.bytes == header.whole &&
                      in.place.contract == header.contract && header.whole > 0;
  return wanted ? Landing{in.place.where, nullptr} : outbox_.pool.room(header.whole, here);
}

// Each piece in flight uses the buffer.
Landing Messages::land_piece(In& in, const FrameHeader& header) {
  Arrival& arrival = in.arrivals[(header.number - 1) % window];
  if (!arrival.landing.at) {
    arrival = {false, header.whole, 0, header.contract, landing_for(in, header, nullptr)};
  } else if (arrival.bytes != header.whole || arrival.contract != header.contract) {
    throw Error("pieces of two messages with one number");
  }
  if (arrival.landing.buffer) ++arrival.landing.buffer->users;
  return {arrival.landing.at + header.begin, arrival.landing.buffer};
}

// Whether it was the last.
bool Messages::piece_landed(In& in, const FrameHeader& header, const Landing& landing) {
  if (landing.buffer) outbox_.pool.release(landing.buffer);
  Arrival& arrival = in.arrivals[(header.number - 1) % window];
  if (arrival.complete || header.bytes > arrival.bytes - arrival.landed)
    throw Error("a piece that came twice");
  arrival.landed += header.bytes;
  arrival.complete = arrival.landed == arrival.bytes;
  return arrival.complete;
}

void Messages::landed(int peer, const FrameHeader& header, const Landing& landing) {
  In& i = in(header.lane, peer);
  if (header.is_piece()) {
    if (!piece_landed(i, header, landing)) return;
  } else {
    i.arrivals[(header.number - 1) % window] = {true, header.bytes, 0, header.contract, landing};
  }
  ++i.arrived;
  if (header.lane < Transport::collective_lanes) peers_[peer].contract = header.contract;
}

bool Messages::have_come(int peer, const Counts& sent) const {
  for (int lane = 0; lane < Transport::lanes; ++lane) {
    const auto& in = peers_[peer].ins[lane];
    if (static_cast<std::int32_t>((in ? in->arrived : 0) - sent[lane]) < 0) return false;
  }
  return true;
}

bool Messages::poll(int lane, int peer, Message& message) const {
  const auto& i = peers_[peer].ins[lane];
  if (!i) return false;
  const Arrival& arrival = i->arrivals[i->received % window];
  if (!arrival.complete) return false;
  message.bytes = arrival.bytes;
  message.contract = arrival.contract;
  message.delivered = arrival.is_placed();
  message.data = arrival.is_placed() ? nullptr : arrival.landing.at;
  message.grant = nullptr;
  return true;
}

void Messages::place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) {
  if (!let_go_) in(lane, peer).place = {where, bytes, contract};
}

void Messages::discard(Arrival& arrival) {
  if (arrival.landing.buffer) outbox_.pool.release(arrival.landing.buffer);
  arrival = {};
}

// Credit is given in quarters of a window, so the sender always has room for the longest message, which is
// half a window.
void Messages::release(int lane, int peer) {
  In& i = in(lane, peer);
  Arrival& arrival = i.arrivals[i.received++ % window];
  i.uncredited_bytes += arrival.bytes;
  i.place = {};
  discard(arrival);
  if (i.received - i.credited < window / 4 && i.uncredited_bytes < window_bytes / 4) return;
  FrameHeader header;
  header.lane = static_cast<std::uint8_t>(lane);
  header.number = i.credited = i.received;
  i.uncredited_bytes = 0;
  outbox_.send_control(peer, FrameKind::credit, {}, header);
}

// --- the end ---------------------------------------------------------------------------------------------

void Messages::let_go_of_callers() {
  let_go_ = true;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (const auto& in : peers_[peer].ins) {
      if (!in) continue;
      in->place = {};
      for (Arrival& arrival : in->arrivals) {
        if (!arrival.complete && arrival.is_placed()) arrival.landing = outbox_.pool.room(arrival.bytes);
      }
    }
    std::erase_if(outbox_.messages(static_cast<int>(peer)), [&](const Outgoing& frame) {
      if (frame.is_lent()) drop(static_cast<int>(peer), frame.header);
      return frame.is_lent();
    });
  }
}

void Messages::forget() {
  outbox_.clear();
  for (const Peer& peer : peers_) {
    for (const auto& in : peer.ins) {
      if (!in) continue;
      for (Arrival& arrival : in->arrivals) discard(arrival);
    }
  }
  for (Buffer*& buffer : reserved_) {
    if (buffer) outbox_.pool.release(buffer);
    buffer = nullptr;
  }
  for (auto& count : unwritten_) count = 0;
}

}  // namespace ringreduce
