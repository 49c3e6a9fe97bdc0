// Frames in flight through MPI.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "fronts/mpi/transport/transport.h"
#include "transport/interface/wait.h"

namespace ringreduce::mpi {
namespace {

using std::chrono::microseconds;

constexpr std::size_t header_bytes = sizeof(FrameHeader);
constexpr unsigned looks_per_hello = 16;
constexpr std::size_t few_requests = 8;
constexpr microseconds shortest_nap{50}, longest_nap{1000};

}  // namespace

// A copy costs less than another round up to 32 KiB, and up to 256 KiB where a round takes turns on a core.
std::size_t MpiTransport::longest_whole(bool crowded) {
  return crowded ? 256 << 10 : 32 << 10;
}

bool MpiTransport::is_whole(const FrameHeader& header) const {
  return header.bytes + header_bytes <= slot_bytes_;
}

// --- running operations ----------------------------------------------------------------------------------

void MpiTransport::add(MPI_Request request, const Purpose& purpose) {
  requests_.push_back(request);
  purposes_.push_back(purpose);
}

void MpiTransport::listen_for_hello() {
  const Turn turn(in_turn_);
  const int code = MPI_Irecv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, tags_.hello, home_->comm(), &requests_[0]);
  mpi::check(code, "MPI_Irecv");
}

void MpiTransport::receive(std::size_t index, std::byte* at, std::size_t bytes, int tag) {
  const Turn turn(in_turn_);
  const int code = MPI_Irecv(at, static_cast<int>(bytes), MPI_BYTE, place_of(purposes_[index].peer), tag,
                             home_->comm(), &requests_[index]);
  if (code != MPI_SUCCESS) failed(index, code);
}

// Opens a receive for a peer's next frame, in the last one's buffer if that is still ours.
void MpiTransport::listen(std::size_t index) {
  Purpose& purpose = purposes_[index];
  purpose.idle = false;
  if (!purpose.buffer) purpose.buffer = pool_.take(slot_bytes_);
  receive(index, purpose.buffer->data, slot_bytes_, tags_.frames);
}

// Not as soon as a frame has arrived, but when there is time, because a thread waits for its contents.
void MpiTransport::listen_again() {
  some_idle_ = false;
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    if (purposes_[i].idle) listen(i);
  }
}

void MpiTransport::open(int peer, bool greet) {
  if (open_[peer]) return;
  open_[peer] = true;
  Purpose purpose{Purpose::Kind::frame};
  purpose.peer = peer;
  add(MPI_REQUEST_NULL, purpose);
  listen(requests_.size() - 1);
  if (!greet) return;
  purpose.kind = Purpose::Kind::sent;
  send_bytes(nullptr, 0, tags_.hello, purpose);
}

void MpiTransport::drop_finished() {
  if (!some_finished_) return;
  some_finished_ = false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    const bool stays =
        requests_[i] != MPI_REQUEST_NULL || purposes_[i].idle || purposes_[i].kind == Purpose::Kind::hello;
    if (!stays) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      purposes_[kept] = purposes_[i];
    }
    ++kept;
  }
  requests_.resize(kept);
  purposes_.resize(kept);
}

bool MpiTransport::sending() const {
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    if (purposes_[i].kind == Purpose::Kind::sent && requests_[i] != MPI_REQUEST_NULL) return true;
  }
  return false;
}

// --- sending ---------------------------------------------------------------------------------------------

void MpiTransport::dispatch(int peer) {
  if (control_.has_left(peer) || closed_) return frames_.discard(peer);
  if (!may_call()) return;  // sent when a thread that may comes
  const Turn turn(in_turn_);
  if (!open_[peer]) open(peer, true);
  for (Outgoing frame; frames_.outbox.take(peer, frame);) send(peer, frame);
}

bool MpiTransport::send_at_once(int peer, const Outgoing& frame) {
  if (!is_whole(frame.header) || !open_[peer] || control_.has_left(peer) || closed_ || !may_call())
    return false;
  send_copy(peer, frame);
  return true;
}

void MpiTransport::send(int peer, const Outgoing& frame) {
  const std::size_t bytes = frame.header.bytes;
  const bool whole = is_whole(frame.header);
  // No other user of the buffer reads what follows the bytes.
  const bool in_place =
      frame.buffer && frame.buffer->users == 1 && bytes + header_bytes <= frame.buffer->room;
  if (whole && !in_place) return send_copy(peer, frame);
  Purpose purpose{Purpose::Kind::sent};
  purpose.peer = peer;
  purpose.frame = frame;
  purpose.ends_frame = true;
  if (whole) {
    std::memcpy(frame.buffer->data + bytes, &frame.header, header_bytes);
    return send_bytes(frame.buffer->data, bytes + header_bytes, tags_.frames, purpose);
  }
  Purpose announcement{Purpose::Kind::sent};
  announcement.peer = peer;
  announcement.buffer = pool_.take(header_bytes);
  std::memcpy(announcement.buffer->data, &frame.header, header_bytes);
  send_bytes(announcement.buffer->data, header_bytes, tags_.frames, announcement);
  send_bytes(frame.data, bytes, tags_.bulk, purpose);
}

// MPI takes most small messages at once, so one buffer usually serves them all.
void MpiTransport::send_copy(int peer, const Outgoing& frame) {
  const std::size_t bytes = frame.header.bytes;
  if (!copy_) copy_ = pool_.take(slot_bytes_);
  if (bytes > 0) std::memcpy(copy_->data, frame.data, bytes);
  std::memcpy(copy_->data + bytes, &frame.header, header_bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  const Begun begun = begin_to_send(copy_->data, bytes + header_bytes, peer, tags_.frames, request);
  if (begun.code != MPI_SUCCESS || begun.done) {
    frames_.written(peer, frame);
    if (begun.code != MPI_SUCCESS) unreachable(peer, begun.code);
    return;
  }
  Purpose purpose{Purpose::Kind::sent};
  purpose.peer = peer;
  purpose.buffer = std::exchange(copy_, nullptr);
  purpose.frame = frame;
  purpose.ends_frame = true;
  add(request, purpose);
}

void MpiTransport::send_bytes(const void* data, std::size_t bytes, int tag, const Purpose& purpose) {
  MPI_Request request = MPI_REQUEST_NULL;
  const Begun begun = begin_to_send(data, bytes, purpose.peer, tag, request);
  if (begun.code == MPI_SUCCESS && !begun.done) return add(request, purpose);
  sent(purpose);
  if (begun.code != MPI_SUCCESS) unreachable(purpose.peer, begun.code);
}

// Most small messages are sent at once.
MpiTransport::Begun MpiTransport::begin_to_send(const void* data, std::size_t bytes, int peer, int tag,
                                                MPI_Request& request) {
  const Turn turn(in_turn_);
  Begun begun;
  begun.code =
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, place_of(peer), tag, home_->comm(), &request);
  if (begun.code == MPI_SUCCESS && bytes <= slot_bytes_) {
    begun.code = MPI_Test(&request, &begun.done, MPI_STATUS_IGNORE);
  }
  return begun;
}

void MpiTransport::sent(const Purpose& purpose) {
  if (purpose.buffer) pool_.release(purpose.buffer);
  if (purpose.ends_frame) frames_.written(purpose.peer, purpose.frame);
}

// --- receiving -------------------------------------------------------------------------------------------

// In our turn. While a pair of ranks exchanges few messages, testing its requests in order is faster than all
// at once. Any test lets MPI move all of them. Where ranks share cores, a test that finds nothing yields the
// core, so each look makes only one.
bool MpiTransport::look() {
  if (some_idle_) listen_again();
  const bool few =
      !facts_.oversubscribed && requests_.size() <= few_requests && ++looks_ % looks_per_hello != 0;
  if (!(few ? test_in_order() : test_all())) return false;
  drop_finished();
  return true;
}

bool MpiTransport::test_in_order() {
  bool any = false;
  const std::size_t all = requests_.size();  // what they start is for later
  for (std::size_t i = 1, missed = 0; i < all && missed < 2; ++i) {
    MPI_Status status;
    int done = 0;
    const int code = MPI_Test(&requests_[i], &done, &status);
    if (code == MPI_SUCCESS && !done) {
      ++missed;
      continue;
    }
    finish(i, status, code);
    any = true;
  }
  return any;
}

bool MpiTransport::test_all() {
  int count = 0;
  statuses_.resize(requests_.size());
  done_.resize(requests_.size());
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(),
                                statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) mpi::check(code, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count <= 0) return false;
  for (int i = 0; i < count; ++i) {
    finish(static_cast<std::size_t>(done_[i]), statuses_[i],
           code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[i].MPI_ERROR);
  }
  return true;
}

void MpiTransport::finish(std::size_t index, const MPI_Status& status, int code) {
  if (code != MPI_SUCCESS) return failed(index, code);
  const Purpose::Kind kind = purposes_[index].kind;
  if (kind == Purpose::Kind::frame) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    // Its contents may start other operations, which move the requests in memory.
    Buffer* left =
        frame_came(purposes_[index].peer, purposes_[index].buffer, static_cast<std::size_t>(bytes));
    purposes_[index].buffer = left;
    purposes_[index].idle = some_idle_ = true;
    return;
  }
  if (kind == Purpose::Kind::hello) {
    const int peer = peers_by_place_[status.MPI_SOURCE];
    if (peer >= 0) open(peer, false);
    return listen_for_hello();
  }
  some_finished_ = true;
  const Purpose purpose = purposes_[index];
  kind == Purpose::Kind::bulk ? frames_.landed(purpose.peer, purpose.header, purpose.landing) : sent(purpose);
}

// Returns the buffer, or null if it has another owner now.
Buffer* MpiTransport::frame_came(int peer, Buffer* buffer, std::size_t bytes) {
  try {
    FrameHeader header;
    if (bytes < header_bytes) throw Error("a message without a header");
    const std::size_t before = bytes - header_bytes;
    std::memcpy(&header, buffer->data + before, header_bytes);
    if (before != header.bytes && before != 0) throw Error("a frame whose length differs from its header");
    const bool whole = before == header.bytes;
    const Landing landing = frames_.land(peer, header, whole ? buffer : nullptr);
    if (whole) {
      if (landing.buffer) buffer = nullptr;
      if (landing.at && buffer) std::memcpy(landing.at, buffer->data, before);
      frames_.landed(peer, header, landing);
      return buffer;
    }
    Purpose purpose{Purpose::Kind::bulk};
    purpose.peer = peer;
    purpose.header = header;
    purpose.landing = landing;
    add(MPI_REQUEST_NULL, purpose);
    receive_bulk(requests_.size() - 1);
  } catch (const Error& error) {
    control_.lost(peer, "sent something that no rank sends: " + std::string(error.what()), false);
  }
  return buffer;
}

void MpiTransport::receive_bulk(std::size_t index) {
  receive(index, purposes_[index].landing.at, purposes_[index].header.bytes, tags_.bulk);
}

// --- waiting ---------------------------------------------------------------------------------------------

// If every rank has a core, looking again is fastest.
bool MpiTransport::look_a_while() {
  constexpr int looks = 8;
  const Turn turn(in_turn_);
  for (int i = 0; i < (facts_.oversubscribed ? 1 : looks); ++i) {
    if (look()) return true;
  }
  return false;
}

// MPI has no wait with a deadline. A waiting thread looks again and again, and sleeps in between once it has
// waited long.
bool MpiTransport::progress(Lock& lock, Clock::duration limit) {
  if (over()) throw Error("MPI has been finalised: it can no longer send anything");
  const bool can_look = !closed_ && may_call();
  if (can_look && look_a_while()) return true;
  if (limit <= Clock::duration::zero()) return false;
  const auto start = Clock::now();
  const auto nap = std::clamp<Clock::duration>(limit / 16, shortest_nap, longest_nap);
  interrupted_ = false;
  do {
    lock.unlock();
    if (limit > brief_wait || !can_look) {
      std::this_thread::sleep_for(nap);
    } else if (!gives_core_away() || mutex_.wanted()) {
      sched_yield();
    }
    lock.lock();
    if (closed_ || over()) return false;
    if (can_look && look_a_while()) return true;
  } while (!interrupted_ && Clock::now() - start < limit);
  return false;
}

}  // namespace ringreduce::mpi
