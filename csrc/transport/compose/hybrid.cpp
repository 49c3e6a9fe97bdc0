#include "transport/compose/hybrid.h"

#include <algorithm>
#include <cstring>

#include "transport/interface/wait.h"

namespace ringreduce {
namespace {

// Ranks that use the other transport do not ring. Just longer than a brief wait, so that long waits sleep.
constexpr std::chrono::microseconds longest_sleep = brief_wait + std::chrono::microseconds(250);
constexpr std::uint32_t pump_every = 32;  // also looks at this host's ranks

}  // namespace

HybridTransport::HybridTransport(std::unique_ptr<MappedTransport> inside,
                                 std::unique_ptr<RemoteTransport> across, std::vector<int> hosts,
                                 Connect connect, int exchanges)
    : Transport(across->rank, across->world, across->facts()),
      inside_(std::move(inside)),
      across_(std::move(across)),
      places_(hosts.size()),
      connect_(std::move(connect)) {
  fabric = across_->fabric;
  facts_.name = inside_->facts().name + "+" + across_->facts().name;
  facts_.hosts = std::move(hosts);
  facts_.exchanges = exchanges;
  facts_.longest_eager = 0;
  for (int r = 0; r < world; ++r) {
    const auto place =
        static_cast<int>(std::count(facts_.hosts.begin(), facts_.hosts.begin() + r, facts_.hosts[r]));
    places_[r] = is_inside(r) ? place : r;
    if (is_inside(r)) here_.push_back(r);
    // The same on all ranks, which cut messages by it: that of the host with the most ranks, which has the
    // least space.
    facts_.capacity = std::min(facts_.capacity, MappedTransport::capacity_for(place + 1));
  }
  share_fate(*inside_);
  share_fate(*across_);
}

HybridTransport::Split& HybridTransport::split(int lane, Peers peers) {
  Split& split = splits_[lane];
  split.inside.clear();
  split.across.clear();
  for (int peer : peers) (is_inside(peer) ? split.inside : split.across).push_back(places_[peer]);
  return split;
}

bool HybridTransport::send(int lane, Peers peers, const void* data, std::size_t bytes,
                           std::uint64_t contract) {
  const Split& to = split(lane, peers);
  if (to.across.empty()) return inside_->send(lane, to.inside, data, bytes, contract);
  if (to.inside.empty()) return across_->send(lane, to.across, data, bytes, contract);
  std::byte* room = reserve(lane, peers, bytes);
  if (!room) return false;
  if (bytes > 0) std::memcpy(room, data, bytes);
  post(lane, peers, room, bytes, contract);
  return true;
}

std::byte* HybridTransport::reserve(int lane, Peers peers, std::size_t bytes) {
  const Split& to = split(lane, peers);
  reserved_across_[lane] = nullptr;
  if (!to.across.empty()) {
    reserved_across_[lane] = across_->reserve(lane, to.across, bytes);
    if (!reserved_across_[lane] || to.inside.empty()) return reserved_across_[lane];
  }
  return inside_->reserve(lane, to.inside, bytes);
}

void HybridTransport::post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
                           std::uint64_t contract) {
  const Split& to = split(lane, peers);
  if (!to.across.empty()) {
    std::byte* room = reserved_across_[lane];
    if (room != reserved && bytes > 0) std::memcpy(room, reserved, bytes);
    across_->post(lane, to.across, room, bytes, contract);
  }
  if (!to.inside.empty()) inside_->post(lane, to.inside, reserved, bytes, contract);
}

int HybridTransport::in_the_way(int lane, Peers peers) {
  if (peers.empty()) return across_->in_the_way(lane, peers);
  const Split& to = split(lane, peers);
  if (!to.across.empty() && !across_->has_room(lane, to.across, 0))
    return across_->in_the_way(lane, to.across);
  return to.inside.empty() ? to.across[0] : here_[inside_->in_the_way(lane, to.inside)];
}

bool HybridTransport::reachable_by(Peers peers) const {
  return std::none_of(peers.begin(), peers.end(), [&](int peer) { return is_inside(peer); });
}

// Sends to both parts or to neither: the one must have space before the other takes the message.
bool HybridTransport::lend(int lane, Peers peers, const std::byte* data, std::size_t bytes,
                           std::uint64_t contract, std::byte* grant) {
  const Split& to = split(lane, peers);
  if (to.across.empty()) return inside_->lend(lane, to.inside, data, bytes, contract, grant);
  if (to.inside.empty()) return across_->lend(lane, to.across, data, bytes, contract, nullptr);
  if (!across_->has_room(lane, to.across, bytes)) return false;
  if (!inside_->lend(lane, to.inside, data, bytes, contract, nullptr)) return false;
  return across_->lend(lane, to.across, data, bytes, contract, nullptr);
}

// A rank that waits for one of this host still serves the network now and then.
bool HybridTransport::pause(Backoff& backoff, int waiting_for) {
  backoff.longest_sleep = std::min<Clock::duration>(backoff.longest_sleep, longest_sleep);
  if (waiting_for < 0 || !is_inside(waiting_for)) {
    inside_->check();
    if (backoff.rounds % pump_every == 0) inside_->say_whom_we_wait_for(waiting_for, Clock::now());
    return across_->pause(backoff, waiting_for);
  }
  if ((backoff.rounds % pump_every == 0 || backoff.sleepers) && across_->pump()) return false;
  across_->check();
  across_->say_whom_we_wait_for(waiting_for);
  return inside_->pause(backoff, places_[waiting_for]);
}

}  // namespace ringreduce
