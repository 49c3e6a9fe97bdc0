// What ranks that share no memory tell each other beside messages: credit, who called what, how it ended.
#include <algorithm>
#include <cstring>

#include "transport/remote/remote.h"

namespace ringreduce {
namespace {

constexpr std::size_t recent = 16;            // calls of which peers are told
constexpr std::size_t longest_reason = 4096;  // bytes of a failure's text

struct AbortNotice {
  std::int32_t culprit;
  std::uint8_t cause;
};

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

void RemoteTransport::tell(int peer, FrameKind kind, const std::string& text, FrameHeader header) {
  if (peers_[peer].lost || peer == rank) return;
  header.kind = kind;
  header.bytes = static_cast<std::uint32_t>(text.size());
  Outgoing frame{header};
  if (!text.empty()) {
    frame.buffer = pool_.take(text.size());
    frame.data = frame.buffer->data;
    std::memcpy(frame.buffer->data, text.data(), text.size());
  }
  peers_[peer].words.push_back(frame);
  dispatch(peer);
}

void RemoteTransport::hear(int peer, const FrameHeader& header, const std::string& text) {
  switch (header.kind) {
    case FrameKind::credit:
      return hear_credit(peer, header);
    case FrameKind::query:
      return tell_status(peer);
    case FrameKind::status:
      return hear_status(peer, text);
    case FrameKind::abort:
      return hear_abort(text);
    case FrameKind::board:
      return hear_board(peer, text);
    case FrameKind::bye:
      return hear_bye(peer, text);
    default:
      throw Error("a frame of kind " + std::to_string(static_cast<int>(header.kind)));
  }
}

void RemoteTransport::hear_credit(int peer, const FrameHeader& header) {
  if (header.lane >= lanes) throw Error("credit for lane " + std::to_string(header.lane));
  Out& o = out(header.lane, peer);
  const auto news = static_cast<std::int32_t>(header.number - o.released);
  if (news > static_cast<std::int32_t>(o.sent - o.released)) throw Error("credit for what was not sent");
  for (; news > 0 && o.released != header.number; ++o.released)
    o.under_way -= o.bytes[o.released % window_messages];
}

// --- what every rank called lately -----------------------------------------------------------------------

void RemoteTransport::record(const Record& record) {
  const Lock lock(mutex_);
  if (own_records_.size() == 2 * recent) {
    own_records_.erase(own_records_.begin(), own_records_.begin() + recent);
  }
  own_records_.push_back(record);
}

void RemoteTransport::tell_status(int peer) {
  const std::size_t count = std::min(own_records_.size(), recent);
  const Record* first = own_records_.data() + own_records_.size() - count;
  tell(peer, FrameKind::status, {reinterpret_cast<const char*>(first), count * sizeof(Record)});
}

void RemoteTransport::hear_status(int peer, const std::string& text) {
  std::vector<Record>& records = peers_[peer].records;
  records.resize(std::min(text.size() / sizeof(Record), recent));
  std::memcpy(records.data(), text.data(), records.size() * sizeof(Record));
  peers_[peer].asked = false;
}

// Once, until the answer comes: who computes reads nothing.
void RemoteTransport::ask(int peer) {
  if (peers_[peer].asked) return;
  peers_[peer].asked = true;
  tell(peer, FrameKind::query);
}

// As far as they can be reached, and answer: who computes does not.
void RemoteTransport::ask_all(Lock& lock) {
  constexpr std::chrono::milliseconds good_for{1000}, patience{400};
  constexpr int most_dialed = 64;
  const auto now = Clock::now();
  if (now - asked_ < good_for) return;
  asked_ = now;
  const auto can_answer = [&](int peer) {
    return peer != rank && !peers_[peer].lost && !has_closed(peer) &&
           (world <= most_dialed || connected(peer));
  };
  for (int peer = 0; peer < world; ++peer) {
    if (can_answer(peer)) ask(peer);
  }
  while (Clock::now() - now < patience) {
    bool all = true;
    for (int peer = 0; peer < world; ++peer) all = all && !(peers_[peer].asked && can_answer(peer));
    if (all) return;
    progress(lock, std::chrono::milliseconds(5));
    let_others_look();
  }
}

// What a rank has told, and what its messages show: they carry what stands for a call and all before it, so
// if that is this rank's own, it has made the same calls.
std::vector<Record> RemoteTransport::known_records(int of_rank) const {
  const Peer& peer = peers_[of_rank];
  std::vector<Record> known = peer.records;
  const auto shown = std::find_if(own_records_.begin(), own_records_.end(),
                                  [&](const Record& own) { return own.history == peer.contract; });
  if (shown == own_records_.end()) return known;
  const std::uint64_t after = known.empty() ? 0 : known.back().sequence;
  std::copy_if(own_records_.begin(), shown + 1, std::back_inserter(known),
               [&](const Record& own) { return own.sequence > after; });
  return known;
}

std::vector<Record> RemoteTransport::records(int of_rank) const {
  Lock lock(mutex_);
  if (of_rank == rank) return own_records_;
  auto& self = const_cast<RemoteTransport&>(*this);
  self.ask_all(lock);
  self.progress(lock, Clock::duration::zero());
  return known_records(of_rank);
}

// Ranks that called different things may all wait. Hence whoever waits long compares the last call that both
// it and a peer have begun.
void RemoteTransport::check_agreement() {
  for (int peer = 0; peer < world; ++peer) {
    const std::vector<Record>& theirs = peers_[peer].records;
    if (theirs.empty() || own_records_.empty()) continue;
    const std::uint64_t common = std::min(theirs.back().sequence, own_records_.back().sequence);
    const auto is_common = [&](const Record& record) { return record.sequence == common; };
    const auto here = std::find_if(own_records_.begin(), own_records_.end(), is_common);
    const auto there = std::find_if(theirs.begin(), theirs.end(), is_common);
    if (here == own_records_.end() || there == theirs.end()) continue;
    if (here->history != there->history) throw Disagreement{peer};
  }
}

// --- the end of all --------------------------------------------------------------------------------------

// The first failure stays. It ends the calls, and the callers may free their arrays.
void RemoteTransport::settle(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  failed_.store(true, std::memory_order_release);
  let_go_of_callers();
  moved_.fetch_add(1);
}

// Kept for the bye, too, which may get there first where a pair of ranks has several streams.
void RemoteTransport::spread(const std::string& text) {
  told_ = text;
  for (int peer = 0; peer < world; ++peer) {
    if (peer != rank && connected(peer)) tell(peer, FrameKind::abort, text);
  }
}

// Whoever waits for this rank is connected to it, and is told; it tells those who wait for it.
void RemoteTransport::abort(const Failure& failure) {
  {
    Lock lock(mutex_);
    if (failure_) return;
    settle(failure);
    AbortNotice notice{};
    notice.culprit = failure.culprit;
    notice.cause = static_cast<std::uint8_t>(failure.cause);
    // They may want to say who called what, too, and nobody here will answer them any more.
    for (int peer = 0; peer < world; ++peer) {
      if (peer != rank && connected(peer)) tell_status(peer);
    }
    spread(bytes_of(notice) + std::string(failure.what()).substr(0, longest_reason));
    progress(lock, Clock::duration::zero());
    if (failure.cause == Cause::mismatch) answer_questions(lock);
  }
  wake();
}

// Others may be about to find out the same, and ask this rank what it called: it is not there to answer
// later.
void RemoteTransport::answer_questions(Lock& lock) {
  constexpr std::chrono::milliseconds at_most{300}, quiet{60};
  const auto start = Clock::now();
  auto moved = start;
  for (auto now = start; now - start < at_most && now - moved < quiet; now = Clock::now()) {
    if (progress(lock, std::chrono::milliseconds(5))) moved = now;
  }
}

void RemoteTransport::hear_abort(const std::string& text) {
  if (failure_) return;
  AbortNotice notice{};
  if (text.size() < sizeof notice) throw Error("a broken abort");
  std::memcpy(&notice, text.data(), sizeof notice);
  const int culprit = notice.culprit >= 0 && notice.culprit < world ? notice.culprit : -1;
  settle(Failure(static_cast<Cause>(notice.cause), culprit, text.substr(sizeof notice)));
  spread(text);
}

void RemoteTransport::check_abort() {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return;
  const Lock lock(mutex_);
  throw Failure(*failure_);
}

void RemoteTransport::lost(int p, const std::string& how) {
  Peer& peer = peers_[p];
  if (peer.lost) return;
  peer.lost = true;
  peer.how = how;
  // What was still to go there is gone; nobody waits for it to be written.
  for (Outgoing frame; take(p, frame);) written(p, frame);
  if (has_closed(p)) return;
  if (lost_count_++ == 0) lost_since_ = Clock::now();
}

bool RemoteTransport::has_closed(int p) const {
  const Peer& peer = peers_[p];
  if (!peer.bye) return false;
  for (int lane = 0; lane < lanes; ++lane) {
    const std::uint32_t arrived = peer.ins[lane] ? peer.ins[lane]->arrived : 0;
    if (arrived != (*peer.bye)[lane]) return false;
  }
  return true;
}

bool RemoteTransport::closed(int peer) const {
  const Lock lock(mutex_);
  return has_closed(peer);
}

void RemoteTransport::say_bye() {
  if (said_bye_) return;
  said_bye_ = true;
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank || !connected(peer)) continue;
    std::array<std::uint32_t, lanes> sent{};
    for (int lane = 0; lane < lanes; ++lane) {
      const auto& out = peers_[peer].outs[lane];
      sent[lane] = out ? out->sent - out->dropped : 0;
    }
    tell(peer, FrameKind::bye, bytes_of(sent) + told_);
  }
}

void RemoteTransport::hear_bye(int peer, const std::string& text) {
  std::array<std::uint32_t, lanes> sent{};
  if (text.size() < sizeof sent) throw Error("a broken bye");
  std::memcpy(&sent, text.data(), sizeof sent);
  if (text.size() > sizeof sent) hear_abort(text.substr(sizeof sent));
  peers_[peer].bye = sent;
}

}  // namespace ringreduce
