#include "transport/compose/hybrid.h"

#include <algorithm>
#include <cstring>

#include "transport/interface/wait.h"

namespace ringreduce {
namespace {

// Nobody rings who uses the other transport. So much longer than a brief wait that long ones are slept
// through.
constexpr std::chrono::microseconds longest_sleep = brief_wait + std::chrono::microseconds(250);
constexpr std::uint32_t pump_every = 32;  // looks at this host's ranks

}  // namespace

HybridTransport::HybridTransport(std::unique_ptr<MappedTransport> inside,
                                 std::unique_ptr<RemoteTransport> across, std::vector<int> hosts,
                                 Connect connect, int exchanges)
    : Transport(across->rank, across->world, true),
      inside_(std::move(inside)),
      across_(std::move(across)),
      hosts_(std::move(hosts)),
      places_(hosts_.size()),
      connect_(std::move(connect)),
      exchanges_(exchanges),
      name_(std::string(inside_->name()) + "+" + across_->name()),
      capacity_(across_->capacity()) {
  for (int r = 0; r < world; ++r) {
    places_[r] = static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + r, hosts_[r]));
    if (is_inside(r)) here_.push_back(r);
    capacity_ = std::min(capacity_, MappedTransport::capacity_for(places_[r] + 1));
  }
  share_fate(*inside_);
  share_fate(*across_);
}

HybridTransport::Split& HybridTransport::split(int lane, Peers peers) {
  Split& split = splits_[lane];
  split.inside.clear();
  split.across.clear();
  for (int peer : peers) {
    if (is_inside(peer)) {
      split.inside.push_back(places_[peer]);
    } else {
      split.across.push_back(peer);
    }
  }
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

// To both, or to neither: room in the one must be there before the other takes it.
bool HybridTransport::lend(int lane, Peers peers, const std::byte* data, std::size_t bytes,
                           std::uint64_t contract, std::byte* grant) {
  const Split& to = split(lane, peers);
  if (to.across.empty()) return inside_->lend(lane, to.inside, data, bytes, contract, grant);
  if (to.inside.empty()) return across_->lend(lane, to.across, data, bytes, contract, nullptr);
  if (!across_->has_room(lane, to.across, bytes)) return false;
  if (!inside_->lend(lane, to.inside, data, bytes, contract, nullptr)) return false;
  return across_->lend(lane, to.across, data, bytes, contract, nullptr);
}

// Only ranks of this host have granted anything.
bool HybridTransport::announce(int lane, Peers peers, std::size_t bytes, std::uint64_t contract) {
  return inside_->announce(lane, split(lane, peers).inside, bytes, contract);
}

std::uint32_t HybridTransport::sent(int lane, int peer) const {
  return is_inside(peer) ? inside_->sent(lane, places_[peer]) : across_->sent(lane, peer);
}

bool HybridTransport::consumed(int lane, int peer, std::uint32_t sent) {
  return is_inside(peer) ? inside_->consumed(lane, places_[peer], sent) : across_->consumed(lane, peer, sent);
}

bool HybridTransport::poll(int lane, int peer, Message& message) {
  return is_inside(peer) ? inside_->poll(lane, places_[peer], message) : across_->poll(lane, peer, message);
}

void HybridTransport::release(int lane, int peer) {
  is_inside(peer) ? inside_->release(lane, places_[peer]) : across_->release(lane, peer);
}

void HybridTransport::place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) {
  if (!is_inside(peer)) across_->place(lane, peer, where, bytes, contract);
}

// Whoever waits for a rank of this host still sees to the network now and then.
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

void HybridTransport::wake() {
  inside_->wake();
  across_->wake();
}

bool HybridTransport::closed(int peer) const {
  return is_inside(peer) ? inside_->closed(places_[peer]) : across_->closed(peer);
}

void HybridTransport::abort(const Failure& failure) {
  inside_->abort(failure);
  across_->abort(failure);
}

void HybridTransport::record(const Record& record) {
  inside_->record(record);
  across_->record(record);
}

std::vector<Record> HybridTransport::records(int of_rank) const {
  return is_inside(of_rank) ? inside_->records(places_[of_rank]) : across_->records(of_rank);
}

std::optional<int> HybridTransport::waits_for(int of_rank, Clock::duration lately) const {
  return is_inside(of_rank) ? inside_->waits_for(places_[of_rank], lately)
                            : across_->waits_for(of_rank, lately);
}

bool HybridTransport::is_gone(int peer) {
  return across_->is_gone(peer) || (is_inside(peer) && inside_->is_gone(places_[peer]));
}

void HybridTransport::close() {
  across_->close();
  inside_->close();
}

void HybridTransport::disown() {
  across_->disown();
  inside_->disown();
}

}  // namespace ringreduce
