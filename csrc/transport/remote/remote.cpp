// The messages of RemoteTransport: lanes, windows, and where the bytes of a message go.
#include "transport/remote/remote.h"

#include <algorithm>
#include <cstring>

namespace ringreduce {
namespace {

constexpr std::size_t longest_word = std::size_t{1} << 20;  // bytes of a frame that is no message

}  // namespace

RemoteTransport::RemoteTransport(int rank, int world, bool oversubscribed)
    : Transport(rank, world, true),
      oversubscribed_(oversubscribed),
      peers_(static_cast<std::size_t>(world)) {}

RemoteTransport::~RemoteTransport() {
  forget_frames();
}

std::size_t RemoteTransport::footprint() const {
  const Lock lock(mutex_);
  return sizeof *this + peers_.size() * sizeof(Peer) + pool_.bytes();
}

RemoteTransport::Out& RemoteTransport::out(int lane, int peer) {
  auto& out = peers_[peer].outs[lane];
  if (!out) out = std::make_unique<Out>();
  return *out;
}

RemoteTransport::In& RemoteTransport::in(int lane, int peer) {
  auto& in = peers_[peer].ins[lane];
  if (!in) in = std::make_unique<In>();
  return *in;
}

// --- sending ---------------------------------------------------------------------------------------------

bool RemoteTransport::fits(int lane, Peers peers, std::size_t bytes) {
  return std::all_of(peers.begin(), peers.end(), [&](int peer) {
    const Out& o = out(lane, peer);
    // A peer may be done with a message before the wire says here that it has been sent.
    return o.sent - o.released < window_messages && o.sent - o.written < window_messages &&
           (o.under_way == 0 || o.under_way + bytes <= window_bytes);
  });
}

bool RemoteTransport::has_room(int lane, Peers peers, std::size_t bytes) {
  const Lock lock(mutex_);
  return fits(lane, peers, bytes);
}

int RemoteTransport::in_the_way(int lane, Peers peers) {
  const Lock lock(mutex_);
  const auto full =
      std::find_if(peers.begin(), peers.end(), [&](const int& peer) { return !fits(lane, {&peer, 1}, 0); });
  if (full != peers.end()) return *full;
  if (!peers.empty()) return peers[0];
  const auto behind = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.outs[lane] && peer.outs[lane]->written != peer.outs[lane]->sent;
  });
  return behind == peers_.end() ? -1 : static_cast<int>(behind - peers_.begin());
}

void RemoteTransport::put(int lane, int peer, const std::byte* data, std::size_t bytes,
                          std::uint64_t contract, Buffer* buffer) {
  Out& o = out(lane, peer);
  o.bytes[o.sent % window_messages] = static_cast<std::uint32_t>(bytes);
  o.under_way += bytes;
  FrameHeader header;
  header.bytes = static_cast<std::uint32_t>(bytes);
  header.kind = FrameKind::message;
  header.lane = static_cast<std::uint8_t>(lane);
  header.number = ++o.sent;
  header.contract = contract;
  unwritten_[lane].store(unwritten_[lane].load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  peers_[peer].messages.push_back({header, data, buffer});
  dispatch(peer);
}

bool RemoteTransport::send(int lane, Peers peers, const void* data, std::size_t bytes,
                           std::uint64_t contract) {
  const Lock lock(mutex_);
  std::byte* room = room_for(lane, peers, bytes);
  if (!room) return false;
  if (bytes > 0) std::memcpy(room, data, bytes);
  post_room(lane, peers, bytes, contract);
  return true;
}

std::byte* RemoteTransport::reserve(int lane, Peers peers, std::size_t bytes) {
  const Lock lock(mutex_);
  return room_for(lane, peers, bytes);
}

void RemoteTransport::post(int lane, Peers peers, const std::byte*, std::size_t bytes,
                           std::uint64_t contract) {
  const Lock lock(mutex_);
  post_room(lane, peers, bytes, contract);
}

std::byte* RemoteTransport::room_for(int lane, Peers peers, std::size_t bytes) {
  if (!fits(lane, peers, bytes)) return nullptr;
  // With room for its header, so that both can go in one piece.
  bytes += sizeof(FrameHeader);
  // What was reserved before and not posted is not wanted any more.
  if (reserved_[lane] && reserved_[lane]->room < bytes) {
    pool_.release(reserved_[lane]);
    reserved_[lane] = nullptr;
  }
  if (!reserved_[lane]) reserved_[lane] = pool_.take(bytes);
  return reserved_[lane]->data;
}

void RemoteTransport::post_room(int lane, Peers peers, std::size_t bytes, std::uint64_t contract) {
  Buffer* buffer = reserved_[lane];
  reserved_[lane] = nullptr;
  buffer->users = static_cast<int>(peers.size());
  for (int peer : peers) put(lane, peer, buffer->data, bytes, contract, buffer);
}

bool RemoteTransport::lend(int lane, Peers peers, const std::byte* data, std::size_t bytes,
                           std::uint64_t contract, std::byte*) {
  const Lock lock(mutex_);
  if (!fits(lane, peers, bytes)) return false;
  for (int peer : peers) put(lane, peer, data, bytes, contract, nullptr);
  return true;
}

std::uint32_t RemoteTransport::sent(int lane, int peer) const {
  const Lock lock(mutex_);
  const auto& out = peers_[peer].outs[lane];
  return out ? out->sent : 0;
}

bool RemoteTransport::consumed(int lane, int peer, std::uint32_t sent) {
  const Lock lock(mutex_);
  return static_cast<std::int32_t>(out(lane, peer).written - sent) >= 0;
}

bool RemoteTransport::flushed(int lane) {
  return unwritten_[lane].load(std::memory_order_acquire) == 0;
}

void RemoteTransport::written(int peer, const Outgoing& frame) {
  if (frame.buffer) pool_.release(frame.buffer);
  if (frame.header.kind != FrameKind::message) return;
  const int lane = frame.header.lane;
  Out& o = out(lane, peer);
  unwritten_[lane].store(unwritten_[lane].load(std::memory_order_relaxed) - 1, std::memory_order_release);
  o.done |= std::uint64_t{1} << (frame.header.number - o.written - 1);
  while (o.done & 1) {
    o.done >>= 1;
    ++o.written;
  }
}

bool RemoteTransport::take(int p, Outgoing& frame) {
  Peer& peer = peers_[p];
  std::deque<Outgoing>& frames = peer.words.empty() ? peer.messages : peer.words;
  if (frames.empty()) return false;
  frame = frames.front();
  frames.pop_front();
  return true;
}

void RemoteTransport::drop(int peer, const Outgoing& frame) {
  ++out(frame.header.lane, peer).dropped;
  written(peer, frame);
}

void RemoteTransport::let_go_of_callers() {
  for (int p = 0; p < world; ++p) {
    Peer& peer = peers_[p];
    for (const auto& in : peer.ins) {
      if (in) in->place = {};
    }
    std::erase_if(peer.messages, [&](const Outgoing& frame) {
      if (is_lent(frame)) drop(p, frame);
      return is_lent(frame);
    });
  }
  withdraw();
}

void RemoteTransport::forget_frames() {
  for (int p = 0; p < world; ++p) {
    for (Outgoing frame; take(p, frame);) {
      if (frame.buffer) pool_.release(frame.buffer);
    }
    for (const auto& in : peers_[p].ins) {
      if (!in) continue;
      for (Arrival& arrival : in->arrivals) discard(arrival);
    }
  }
  for (Buffer*& buffer : reserved_) {
    if (buffer) pool_.release(buffer);
    buffer = nullptr;
  }
  for (auto& count : unwritten_) count = 0;
}

// --- receiving -------------------------------------------------------------------------------------------

Landing RemoteTransport::land(int peer, const FrameHeader& header) {
  if (header.kind != FrameKind::message) {
    if (header.bytes > longest_word) throw Error("a frame of " + std::to_string(header.bytes) + " bytes");
    if (header.bytes == 0) return {};
    Buffer* buffer = pool_.take(header.bytes);
    return {buffer->data, buffer};
  }
  if (header.lane >= lanes) throw Error("a message of lane " + std::to_string(header.lane));
  if (header.bytes > window_bytes) throw Error("a message of " + std::to_string(header.bytes) + " bytes");
  In& i = in(header.lane, peer);
  const std::uint32_t ahead = header.number - i.received - 1;
  if (ahead >= window_messages || i.arrivals[(header.number - 1) % window_messages].complete) {
    throw Error("message number " + std::to_string(header.number) + " after " + std::to_string(i.received));
  }
  if (header.bytes == 0) return {};
  const bool wanted = ahead == 0 && i.place.where && i.place.bytes == header.bytes &&
                      i.place.contract == header.contract && !ended_;
  if (wanted) return {i.place.where, nullptr};
  Buffer* buffer = pool_.take(header.bytes);
  return {buffer->data, buffer};
}

void RemoteTransport::landed(int peer, const FrameHeader& header, const Landing& landing) {
  peers_[peer].spoken = true;
  if (header.kind == FrameKind::message) {
    arrive(peer, header, landing);
    return;
  }
  const std::string text(reinterpret_cast<const char*>(landing.at), header.bytes);
  if (landing.buffer) pool_.release(landing.buffer);
  hear(peer, header, text);
}

void RemoteTransport::arrive(int peer, const FrameHeader& header, const Landing& landing) {
  In& i = in(header.lane, peer);
  Arrival& arrival = i.arrivals[(header.number - 1) % window_messages];
  arrival = {true, landing.at && !landing.buffer, header.bytes, header.contract, landing};
  ++i.arrived;
  if (header.lane < collective_lanes) peers_[peer].contract = header.contract;
}

bool RemoteTransport::poll(int lane, int peer, Message& message) {
  const Lock lock(mutex_);
  const auto& i = peers_[peer].ins[lane];
  if (!i) return false;
  const Arrival& arrival = i->arrivals[i->received % window_messages];
  if (!arrival.complete) return false;
  message.bytes = arrival.bytes;
  message.contract = arrival.contract;
  message.delivered = arrival.placed;
  message.data = arrival.placed ? nullptr : arrival.landing.at;
  message.grant = nullptr;
  return true;
}

void RemoteTransport::place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) {
  const Lock lock(mutex_);
  if (!ended_) in(lane, peer).place = {where, bytes, contract};
}

void RemoteTransport::discard(Arrival& arrival) {
  if (arrival.landing.buffer) pool_.release(arrival.landing.buffer);
  arrival = {};
}

// Credit is given in quarters of a window: the sender then always has room for the longest message, which is
// half of one.
void RemoteTransport::release(int lane, int peer) {
  const Lock lock(mutex_);
  In& i = in(lane, peer);
  Arrival& arrival = i.arrivals[i.received++ % window_messages];
  i.uncredited_bytes += arrival.bytes;
  i.place = {};
  discard(arrival);
  if (i.received - i.credited < window_messages / 4 && i.uncredited_bytes < window_bytes / 4) return;
  FrameHeader header;
  header.lane = static_cast<std::uint8_t>(lane);
  header.number = i.credited = i.received;
  i.uncredited_bytes = 0;
  tell(peer, FrameKind::credit, "", header);
}

}  // namespace ringreduce
