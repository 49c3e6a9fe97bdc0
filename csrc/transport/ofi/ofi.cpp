// How OfiTransport moves frames.
#include "transport/ofi/ofi.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/interface/exchange.h"
#include "transport/tcp/checksum.h"

namespace ringreduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr unsigned looks_per_look_at_sockets = 8;
constexpr int most_failures = 64;  // at a look
constexpr microseconds nap{50};
// The socket may still say that the peer has closed, if that waits for a core. It tells of deaths at once.
constexpr milliseconds trouble_is_final{3000};

}  // namespace

// --- sending ---------------------------------------------------------------------------------------------

void OfiTransport::greet(int peer) {
  peers_[peer].greeted = true;
  peers_[peer].key = random_number();
  std::string text = bytes_of(peers_[peer].key);
  for (const Rail& rail : rails_) {
    const std::string& name = rail.device->name();
    text += bytes_of(static_cast<std::uint32_t>(name.size())) + name;
  }
  frames_.outbox.send_control(peer, FrameKind::endpoint, text);
}

void OfiTransport::hear_endpoint(int peer, std::string_view text) {
  Peer& theirs = peers_[peer];
  if (!device_) return;
  if (theirs.is_known()) throw Error("a second endpoint");
  const auto take = [&](std::size_t bytes) {
    if (text.size() < bytes) throw Error("a malformed endpoint");
    const std::string_view taken = text.substr(0, bytes);
    text.remove_prefix(bytes);
    return taken;
  };
  std::memcpy(&theirs.key_there, take(sizeof theirs.key_there).data(), sizeof theirs.key_there);
  std::vector<std::uint64_t> addresses;
  for (const Rail& rail : rails_) {
    std::uint32_t length = 0;
    std::memcpy(&length, take(sizeof length).data(), sizeof length);
    addresses.push_back(rail.device->address_of(std::string(take(length))));
  }
  theirs.addresses = std::move(addresses);
  if (!theirs.greeted) greet(peer);
  // It says nothing, but the provider connects.
  FrameHeader nothing;
  nothing.kind = FrameKind::credit;
  if (checks_frames()) seal(nothing, nullptr);
  theirs.waiting.push_front({Outgoing{nothing}});
  push(peer);
}

void OfiTransport::dispatch(int peer) {
  queue_up(peer);
  const bool gone = control_.has_left(peer);
  if (gone || !device_) {
    drop_waiting(peer);
  } else if (!peers_[peer].waiting.empty()) {
    if (!peers_[peer].greeted) greet(peer);
    push(peer);
  }
  if (gone || frames_.outbox.has_frames(peer)) TcpTransport::dispatch(peer);
}

// Takes the flow of messages from the outbox, in pieces that the provider can send.
void OfiTransport::queue_up(int peer) {
  const std::size_t most = device_ ? device_->longest_message() : ~std::size_t{0};
  for (Outgoing frame; frames_.outbox.take_flow(peer, frame, most);) {
    if (checks_frames()) seal(frame.header, frame.data);
    peers_[peer].waiting.push_back({frame});
  }
}

void OfiTransport::push(int peer) {
  Peer& theirs = peers_[peer];
  try {
    while (theirs.is_known() && !theirs.waiting.empty() && theirs.trouble.empty()) {
      if (!send_next(peer, theirs.waiting.front())) {
        some_wait_ = true;
        return;
      }
      theirs.waiting.pop_front();
    }
  } catch (const Error& error) {
    trouble_with(peer, error.what());
  }
}

bool OfiTransport::send_next(int peer, Waiting& next) {
  const Outgoing frame = next.frame;
  if (frame.header.bytes > slot_bytes_) return send_bulk(peer, next);
  return send_whole(peer, {frame.data, frame.header.bytes}, tail_of(peer, frame.header, next.bulk), frame);
}

// `data`: before the tail. `frame`: the frame that is then on the wire, if any.
bool OfiTransport::send_whole(int peer, std::span<const std::byte> data, const Tail& tail,
                              const std::optional<Outgoing>& frame) {
  const std::size_t bytes = data.size(), all = bytes + sizeof tail;
  const std::uint64_t to = peers_[peer].addresses[0];
  // No other user of the buffer reads what follows the bytes.
  const bool in_place = bytes > 0 && frame && frame->buffer && frame->buffer->users == 1 &&
                        all <= frame->buffer->room && frame->buffer->data == data.data();
  Buffer* buffer = in_place ? frame->buffer : pool_.take(all);
  if (!in_place) std::copy(data.begin(), data.end(), buffer->data);
  std::memcpy(buffer->data + bytes, &tail, sizeof tail);
  const bool injects = all <= device_->longest_injection();
  bool taken = false;
  if (injects) {
    taken = device_->inject(to, buffer->data, all);
    if (taken && frame) frames_.written(peer, *frame);
  } else {
    Operation& operation = begin(Operation::Kind::send, peer);
    operation.frame = frame;
    operation.buffer = in_place ? nullptr : buffer;
    taken = describe(operation, *buffer) && device_->send(to, operation.span(buffer->data, all), &operation);
    if (!taken) end(operation);
  }
  if (!in_place && (injects || !taken)) pool_.release(buffer);
  if (!taken || !frame) return taken;
  counted_.sent.add(bytes);
  if (!in_place) counted_.copied_to_send.add(bytes);
  return true;
}

OfiTransport::Tail OfiTransport::tail_of(int peer, const FrameHeader& header, std::uint32_t bulk) const {
  return {header, peers_[peer].key_there, static_cast<std::uint32_t>(rank), bulk};
}

bool OfiTransport::send_at_once(int peer, const Outgoing& frame) {
  const Peer& theirs = peers_[peer];
  if (!device_ || frame.header.bytes > slot_bytes_ || !theirs.is_known()) return false;
  if (!theirs.waiting.empty() || !theirs.trouble.empty() || control_.has_left(peer)) return false;
  try {
    Tail tail = tail_of(peer, frame.header, 0);
    if (checks_frames()) seal(tail.header, frame.data);
    return send_whole(peer, {frame.data, frame.header.bytes}, tail, frame);
  } catch (const Error& error) {
    trouble_with(peer, error.what());
    return false;
  }
}

// The peer may have closed, which it says over the socket.
void OfiTransport::trouble_with(int peer, const std::string& what) {
  if (!peers_[peer].trouble.empty()) return;
  peers_[peer].trouble = what;
  peers_[peer].since = Clock::now();
  in_trouble_ = true;
}

void OfiTransport::look_at_troubles() {
  const auto now = Clock::now();
  in_trouble_ = false;
  for (int peer = 0; peer < world; ++peer) {
    const Peer& theirs = peers_[peer];
    if (theirs.trouble.empty() || control_.has_left(peer)) continue;
    if (now - theirs.since >= trouble_is_final) {
      control_.lost(peer, "can no longer be reached over the fabric (" + theirs.trouble + ")", false);
    } else {
      in_trouble_ = true;
    }
  }
}

// --- receiving -------------------------------------------------------------------------------------------

OfiTransport::Operation& OfiTransport::begin(Operation::Kind kind, int peer) {
  if (spare_.empty()) {
    operations_.push_back(std::make_unique<Operation>());
    spare_.push_back(operations_.back().get());
  }
  Operation& operation = *spare_.back();
  spare_.pop_back();
  operation = {};
  operation.kind = kind;
  operation.peer = peer;
  operation.busy = true;
  return operation;
}

void OfiTransport::end(Operation& operation) {
  operation.busy = false;
  operation.region.reset();
  spare_.push_back(&operation);
}

// Registers a buffer for as long as the operation lasts, if the provider demands it. False: not now.
bool OfiTransport::describe(Operation& operation, const Buffer& buffer) {
  if (!device_->needs_descriptions()) return true;
  operation.region = regions_->of(buffer);
  return operation.region != nullptr;
}

// Opens a receive, now or later.
void OfiTransport::receive(Operation& operation) {
  if (!begin_receive(operation)) late_.push_back(&operation);
}

bool OfiTransport::begin_receive(Operation& operation) {
  if (operation.kind == Operation::Kind::bulk) return post_bulk(operation);
  operation.region = of_arena_;
  return device_->receive(operation.span(operation.buffer->data, slot_bytes_ + sizeof(Tail)), &operation);
}

bool OfiTransport::look() {
  bool moved = false;
  for (const Rail& rail : rails_) {
    rail.regions->follow();
    moved |= look_at(*rail.device);
  }
  if (device_ && (some_wait_ || !late_.empty())) try_again();
  return moved;
}

bool OfiTransport::look_at(ofi::Device& device) {
  constexpr int most = 16, most_times = 4;
  ofi::Completion completions[most];
  bool moved = false;
  for (int i = 0; i < most_times; ++i) {
    const int count = device.completions(completions, most);
    moved |= count != 0;
    if (count < 0) look_at_failures(device);
    for (int c = 0; c < count; ++c) {
      finish(*static_cast<Operation*>(completions[c].context), completions[c].bytes);
    }
    if (count < most) break;
  }
  return moved;
}

void OfiTransport::try_again() {
  for (Operation* operation : std::exchange(late_, {})) receive(*operation);
  if (!std::exchange(some_wait_, false)) return;
  for (int peer = 0; peer < world; ++peer) {
    if (!peers_[peer].waiting.empty()) push(peer);
  }
}

void OfiTransport::look_at_failures(ofi::Device& device) {
  ofi::FailedCompletion completion;
  std::string why;
  // A provider may fail again whatever it is given.
  for (int i = 0; i < most_failures && device.failed(completion, why); ++i) {
    if (completion.context) failed(*static_cast<Operation*>(completion.context), why);
  }
}

void OfiTransport::finish(Operation& operation, std::size_t bytes) {
  switch (operation.kind) {
    case Operation::Kind::slot:
      operation.buffer = frame_came(operation.buffer, bytes);
      if (!operation.buffer) operation.buffer = pool_.take(slot_bytes_ + sizeof(Tail));
      return receive(operation);
    case Operation::Kind::bulk:
      if (operation.number == 0 && bytes != operation.header.bytes) {
        return failed(operation, "a message of another length");
      }
      bulk_came(operation);
      break;
    case Operation::Kind::send:
    case Operation::Kind::offer:
      if (operation.buffer) pool_.release(operation.buffer);
      if (operation.frame) frames_.written(operation.peer, *operation.frame);
  }
  end(operation);
}

// Without a peer: a stranger's message, which was too long.
void OfiTransport::failed(Operation& operation, const std::string& why) {
  if (operation.kind == Operation::Kind::slot) return receive(operation);
  trouble_with(operation.peer, why);
  if (operation.kind == Operation::Kind::send) return finish(operation, 0);
  drop(operation);
  end(operation);
}

// Bytes that follow by themselves are checked when they have come.
bool OfiTransport::arrived_intact(const Tail& tail, const void* data, std::size_t bytes) {
  std::uint32_t checksum = 0;
  if (!is_intact(tail.header, checksum)) return false;
  return tail.bulk != 0 || (tail.header.bytes == bytes && is_intact(tail.header, data));
}

// Returns the buffer, or null if it has another owner now.
Buffer* OfiTransport::frame_came(Buffer* buffer, std::size_t bytes) {
  Tail tail;
  if (bytes < sizeof tail) return buffer;
  const std::size_t before = bytes - sizeof tail;
  std::memcpy(static_cast<void*>(&tail), buffer->data + before, sizeof tail);
  if (tail.from >= peers_.size()) return buffer;
  const int peer = static_cast<int>(tail.from);
  if (!peers_[peer].greeted || tail.key != peers_[peer].key || control_.is_lost(peer)) return buffer;
  peers_[peer].heard = true;
  if (checks_frames() && !arrived_intact(tail, buffer->data, before)) {
    damaged_from_ = peer;
    return buffer;
  }
  try {
    const bool is_flow = tail.header.kind == FrameKind::message || tail.header.kind == FrameKind::credit;
    if (!is_flow) throw Error("a frame that belongs on a socket");
    const bool is_bulk = tail.bulk != 0 && tail.header.kind == FrameKind::message;
    if (is_bulk) {
      bulk_comes(peer, tail, {buffer->data, before});
      return buffer;
    }
    if (before != tail.header.bytes) throw Error("a frame whose length differs from its header");
    if (tail.bulk != 0) {
      offer_was_read(peer, tail.bulk);
      return buffer;
    }
    const Landing landing = frames_.land(peer, tail.header, arena_ ? nullptr : buffer);
    const bool stays = landing.buffer == buffer;
    if (!stays) std::copy_n(buffer->data, before, landing.at);
    counted_.received.add(before);
    if (!stays) counted_.copied_on_receipt.add(before);
    frames_.landed(peer, tail.header, landing);
    return stays ? nullptr : buffer;
  } catch (const Error& error) {
    control_.lost(peer, "sent something that no rank sends: " + std::string(error.what()), false);
  }
  return buffer;
}

// --- waiting ---------------------------------------------------------------------------------------------

bool OfiTransport::looks_quickly() const {
  return device_ && device_->looks_quickly() && !facts_.oversubscribed;
}

void OfiTransport::interrupt() {
  interrupted_.store(true);
  TcpTransport::interrupt();
}

// Sockets carry little, so they are looked at less often than the fabric.
bool OfiTransport::progress(Lock& lock, Clock::duration limit) {
  const bool moved = look();
  if (in_trouble_) look_at_troubles();
  if (damaged_from_ >= 0) report_damage(rank, std::exchange(damaged_from_, -1));
  if (moved || limit <= Clock::duration::zero()) {
    if (device_ && ++looks_ % looks_per_look_at_sockets != 0) return moved;
    return TcpTransport::progress(lock, Clock::duration::zero()) || moved;
  }
  if (!device_) return TcpTransport::progress(lock, limit);
  if (device_->descriptor() < 0) return look_a_while(lock, limit);
  if (some_wait_ || !late_.empty() || in_trouble_) limit = std::min<Clock::duration>(limit, milliseconds(1));
  if (!may_sleep()) limit = Clock::duration::zero();
  const bool talked = TcpTransport::progress(lock, limit);
  return look() || talked;
}

bool OfiTransport::may_sleep() const {
  return std::all_of(rails_.begin(), rails_.end(), [](const Rail& rail) { return rail.device->may_sleep(); });
}

// The provider has nothing to wait on: looks again and again, and sleeps in between once it has waited long.
bool OfiTransport::look_a_while(Lock& lock, Clock::duration limit) {
  const auto until = Clock::now() + limit;
  interrupted_ = false;
  do {
    lock.unlock();
    if (limit > brief_wait) {
      std::this_thread::sleep_for(nap);
    } else {
      sched_yield();
    }
    lock.lock();
    if (TcpTransport::progress(lock, Clock::duration::zero()) || look()) return true;
  } while (device_ && !interrupted_ && Clock::now() < until);
  return false;
}

}  // namespace ringreduce
