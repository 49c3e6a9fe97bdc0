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

std::string notice_of(const Failure& failure) {
  AbortNotice notice{};
  notice.culprit = failure.culprit;
  notice.cause = static_cast<std::uint8_t>(failure.cause);
  return bytes_of(notice) + std::string(failure.what()).substr(0, longest_reason);
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
  const std::string records(reinterpret_cast<const char*>(first), count * sizeof(Record));
  tell(peer, FrameKind::status, bytes_of(waiting_for_.load()) + records);
}

void RemoteTransport::hear_status(int from, const std::string& text) {
  Peer& peer = peers_[from];
  if (text.size() < sizeof peer.waits_for) throw Error("a broken status");
  std::memcpy(&peer.waits_for, text.data(), sizeof peer.waits_for);
  const std::size_t count = std::min((text.size() - sizeof peer.waits_for) / sizeof(Record), recent);
  peer.records.resize(count);
  if (count > 0)
    std::memcpy(peer.records.data(), text.data() + sizeof peer.waits_for, count * sizeof(Record));
  peer.asked = false;
  peer.answered = Clock::now();
}

// Who does not wait answers no questions: neither the last that all were asked nor one of its own.
std::optional<int> RemoteTransport::waits_for(int of_rank, Clock::duration lately) const {
  const Lock lock(mutex_);
  const Peer& peer = peers_[of_rank];
  const bool is_fresh = peer.answered >= asked_ || Clock::now() - peer.answered <= lately;
  if (!is_fresh || peer.answered == Clock::time_point() || peer.waits_for >= world) return std::nullopt;
  return peer.waits_for;
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

// The callers may free their arrays now. False if that has happened before.
bool RemoteTransport::end_calls() {
  if (ended_) return false;
  ended_ = true;
  let_go_of_callers();
  moved_.fetch_add(1);
  answer_latecomers();
  return true;
}

// Kept for the bye, too, which may get there first where a pair of ranks has several streams.
void RemoteTransport::spread(const std::string& text) {
  told_ = text;
  for (int peer = 0; peer < world; ++peer) {
    if (peer != rank && connected(peer)) tell(peer, FrameKind::abort, text);
  }
}

// False if that has happened before.
bool RemoteTransport::end_all(const Failure& found) {
  const Failure failure = fate().fail(found);
  if (!end_calls()) return false;
  // They may want to say who called what, too, and nobody here will answer them any more.
  for (int peer = 0; peer < world; ++peer) {
    if (peer != rank && connected(peer)) tell_status(peer);
  }
  spread(notice_of(failure));
  return true;
}

// Whoever waits for this rank is connected to it, and is told; it tells those who wait for it. Who comes
// later is told then.
void RemoteTransport::abort(const Failure& found) {
  {
    Lock lock(mutex_);
    if (!end_all(found)) return;
    progress(lock, Clock::duration::zero());
    if (fate().failure()->cause == Cause::mismatch) answer_questions(lock);
  }
  wake();
}

void RemoteTransport::connected_to(int peer) {
  if (!told_.empty()) tell(peer, FrameKind::abort, told_);
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
  if (ended_) return;
  AbortNotice notice{};
  if (text.size() < sizeof notice) throw Error("a broken abort");
  std::memcpy(&notice, text.data(), sizeof notice);
  const int culprit = notice.culprit >= 0 && notice.culprit < world ? notice.culprit : -1;
  const Failure failure =
      fate().fail(Failure(cause_numbered(notice.cause), culprit, text.substr(sizeof notice)));
  if (end_calls()) spread(notice_of(failure));
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

// --- the agreement on survivors --------------------------------------------------------------------------

void RemoteTransport::show(const Board& board) {
  const Lock lock(mutex_);
  own_board_ = board;
  boards_are_late_ = false;
  for (int peer = 0; peer < world; ++peer) {
    if (!has_closed(peer)) tell(peer, FrameKind::board, packed(board));
  }
}

Board RemoteTransport::board(int of_rank) {
  const Lock lock(mutex_);
  return of_rank == rank ? own_board_ : peers_[of_rank].board;
}

// Frames of one peer may overtake each other; boards only grow.
void RemoteTransport::hear_board(int peer, const std::string& text) {
  std::optional<Board> news = unpacked(text, world);
  if (!news) throw Error("a broken board");
  Board& known = peers_[peer].board;
  for (std::size_t i = 0; i < known.alive.size(); ++i) news->alive[i] &= known.alive[i];
  news->finished = std::max(news->finished, known.finished);
  if (news->step < known.step) {
    news->step = known.step;
    news->blob = std::move(known.blob);
  }
  known = std::move(*news);
}

bool RemoteTransport::is_gone(int peer) {
  const Lock lock(mutex_);
  if (boards_are_late_) look_after(peer);
  return peers_[peer].lost || has_closed(peer);
}

// Of a dead rank's words, from one who has heard them.
Clock::duration RemoteTransport::last_words_take() const {
  return std::chrono::milliseconds(300);
}

void RemoteTransport::await_boards() {
  Lock lock(mutex_);
  progress(lock, std::chrono::milliseconds(5));
  boards_are_late_ = true;
  let_others_look();
}

}  // namespace ringreduce
