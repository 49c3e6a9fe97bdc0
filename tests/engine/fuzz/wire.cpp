#include "wire.h"

#include <cstring>

namespace ringreduce::fuzz {
namespace {

constexpr std::size_t most_queued = 32;    // frames, as a connection takes them at once
constexpr std::size_t longest = 64 << 10;  // piece of a message, on connections to places far away
constexpr int kinds = static_cast<int>(FrameKind::endpoint) + 1;

}  // namespace

void Wire::step() {
  const Lock lock(mutex_);
  move();
}

bool Wire::progress(Lock&, Clock::duration) {
  move();
  return true;
}

void Wire::move() {
  if (input_.empty()) throw Ended();
  const int what = input_.below(256);
  const int peer = what % world, action = what / world % 16;
  if (peer == rank || control_.is_lost(peer)) return;
  Connection& connection = peers_[peer].connections[action % 2];
  try {
    if (action == 15) {
      abandon(peer);
      control_.lost(peer, "died", true);
    } else if (action >= 12) {
      write(peer);
    } else if (connection.in_frame) {
      end_frame(peer, connection);
    } else {
      begin_frame(peer, connection);
    }
  } catch (const Error& error) {
    abandon(peer);
    control_.lost(peer, error.what(), false);
  }
}

// Only such headers get past a connection.
void Wire::begin_frame(int peer, Connection& connection) {
  FrameHeader header;
  input_.read(&header, sizeof header);
  header.kind = static_cast<FrameKind>(static_cast<int>(header.kind) % kinds);
  if (header.kind == FrameKind::credit || header.kind == FrameKind::query) header.bytes = 0;
  // Lengths that are allowed are mostly short ones here: to fill and copy more would take most of the time.
  const std::uint32_t most = header.kind == FrameKind::message ? 256 << 10 : 4 << 10;
  if (header.bytes < 4 << 20) header.bytes %= most;
  // Most messages are whole, or pieces of one that they fit into.
  if (header.whole % 4 > 0) header.begin = 0;
  if (header.whole % 4 > 1) header.whole = header.bytes;
  if (header.whole < 4 << 20) header.whole %= most;
  connection.landing = frames_.land(peer, header);
  connection.header = header;
  connection.in_frame = true;
  if (header.bytes == 0) end_frame(peer, connection);
}

void Wire::end_frame(int peer, Connection& connection) {
  const FrameHeader header = connection.header;
  const Landing landing = connection.landing;
  connection = {};
  if (header.bytes > 0) {
    const std::size_t here = input_.read(landing.at, header.bytes);
    std::memset(landing.at + here, 0, header.bytes - here);
  }
  frames_.landed(peer, header, landing);
}

void Wire::dispatch(int peer) {
  if (control_.is_lost(peer)) return frames_.discard(peer);
  std::deque<Outgoing>& queue = peers_[peer].queue;
  for (Outgoing frame; queue.size() < most_queued && frames_.outbox.take(peer, frame, longest);)
    queue.push_back(frame);
}

// MPI says in any order that frames are written.
void Wire::write(int peer) {
  std::deque<Outgoing>& queue = peers_[peer].queue;
  if (queue.empty()) return dispatch(peer);
  const auto chosen = queue.begin() + input_.below(static_cast<int>(queue.size()));
  const Outgoing frame = *chosen;
  std::uint8_t read = 0;
  for (std::size_t i = 0; i < frame.header.bytes; i += 64) read ^= static_cast<std::uint8_t>(frame.data[i]);
  [[maybe_unused]] const volatile std::uint8_t sent = read;
  queue.erase(chosen);
  frames_.written(peer, frame);
  dispatch(peer);
}

void Wire::withdraw() {
  for (int p = 0; p < world; ++p) {
    for (Connection& connection : peers_[p].connections) {
      if (!connection.in_frame || !connection.landing.at || connection.landing.buffer) continue;
      connection.landing = pool_.room(connection.header.bytes);
    }
    std::erase_if(peers_[p].queue, [&](const Outgoing& frame) { return frames_.drop(p, frame); });
  }
}

void Wire::abandon(int peer) {
  for (Connection& connection : peers_[peer].connections) {
    if (connection.landing.buffer) pool_.release(connection.landing.buffer);
    connection = {};
  }
  std::deque<Outgoing>& queue = peers_[peer].queue;
  for (; !queue.empty(); queue.pop_front()) frames_.written(peer, queue.front());
}

}  // namespace ringreduce::fuzz
