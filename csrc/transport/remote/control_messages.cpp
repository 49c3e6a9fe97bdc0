#include "transport/remote/control_messages.h"

#include <algorithm>
#include <utility>

#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t recent = 16;            // calls in a status
constexpr std::size_t longest_reason = 4096;  // bytes of a failure's text
constexpr milliseconds silence{150};          // after which a peer must show that it lives
constexpr milliseconds loss_is_final{20};     // messages that a dead peer had sent may still complete a wait

struct AbortNotice {
  std::int32_t culprit, cause;
};

// Takes a value from the beginning of a text; the rest stays.
template <typename T>
T taken(std::string_view& text, const char* of_what) {
  T value{};
  if (text.size() < sizeof value) throw Error(std::string("a malformed ") + of_what);
  text.copy(reinterpret_cast<char*>(&value), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

}  // namespace

void ControlMessages::receive(int peer, FrameKind kind, std::string_view text) {
  switch (kind) {
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
    case FrameKind::endpoint:
      return wire_.hear_endpoint(peer, text);
    default:
      throw Error("a frame of kind " + std::to_string(static_cast<int>(kind)));
  }
}

// --- what every rank called lately -----------------------------------------------------------------------

void ControlMessages::record(const Record& record) {
  if (own_records_.size() == 2 * recent) {
    own_records_.erase(own_records_.begin(), own_records_.begin() + recent);
  }
  own_records_.push_back(record);
}

void ControlMessages::tell_status(int peer) {
  const std::size_t count = std::min(own_records_.size(), recent);
  const Record* first = own_records_.data() + own_records_.size() - count;
  const std::string records(reinterpret_cast<const char*>(first), count * sizeof(Record));
  outbox_.send_control(peer, FrameKind::status, bytes_of(waiting_for_.load()) + records);
}

void ControlMessages::hear_status(int from, std::string_view text) {
  Peer& peer = peers_[from];
  peer.waits_for = taken<int>(text, "status");
  peer.records.resize(std::min(text.size() / sizeof(Record), recent));
  for (Record& record : peer.records) record = taken<Record>(text, "status");
  peer.asked = false;
  peer.answered = Clock::now();
}

// A rank that does not wait answers no questions, neither the last one to all ranks nor one to itself.
std::optional<int> ControlMessages::waits_for(int of_rank, Clock::duration lately) const {
  const Peer& peer = peers_[of_rank];
  const bool is_fresh = peer.answered >= asked_ || Clock::now() - peer.answered <= lately;
  if (!is_fresh || peer.answered == Clock::time_point() || peer.waits_for >= world_) return std::nullopt;
  return peer.waits_for;
}

// Asks once, until the answer comes: a rank that computes reads nothing.
void ControlMessages::ask(int peer) {
  if (peers_[peer].asked || is_lost(peer)) return;
  peers_[peer].asked = true;
  outbox_.send_control(peer, FrameKind::query);
}

bool ControlMessages::can_answer(int peer) const {
  constexpr int most_dialed = 64;
  return peer != rank_ && !is_lost(peer) && !closed(peer) && (world_ <= most_dialed || wire_.connected(peer));
}

bool ControlMessages::ask_all() {
  constexpr milliseconds good_for{1000};
  const auto now = Clock::now();
  if (now - asked_ < good_for) return false;
  asked_ = now;
  for (int peer = 0; peer < world_; ++peer) {
    if (can_answer(peer)) ask(peer);
  }
  return true;
}

bool ControlMessages::answers_are_due() const {
  for (int peer = 0; peer < world_; ++peer) {
    if (peers_[peer].asked && can_answer(peer)) return true;
  }
  return false;
}

// What a rank has reported, and what its messages show. They carry a word for a call and all before it; if it
// equals this rank's, that rank has made the same calls.
std::vector<Record> ControlMessages::records(int of_rank) const {
  if (of_rank == rank_) return own_records_;
  std::vector<Record> known = peers_[of_rank].records;
  const auto shown = std::find_if(own_records_.begin(), own_records_.end(), [&](const Record& own) {
    return own.history == messages_.contract(of_rank);
  });
  if (shown == own_records_.end()) return known;
  const std::uint64_t after = known.empty() ? 0 : known.back().sequence;
  std::copy_if(own_records_.begin(), shown + 1, std::back_inserter(known),
               [&](const Record& own) { return own.sequence > after; });
  return known;
}

// Ranks that made different calls may all wait. A rank that waits for long therefore compares the last call
// that both it and a peer have begun.
void ControlMessages::check_agreement() const {
  for (int peer = 0; peer < world_; ++peer) {
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

void ControlMessages::let_go_of_callers() {
  messages_.let_go_of_callers();
  wire_.withdraw();
}

// The text is kept for the bye as well, which may arrive first if a pair of ranks has several streams.
bool ControlMessages::end_all(const Failure& found, bool first_hand) {
  const Failure failure = group_.fate().fail(found);
  if (have_ended()) return false;
  const AbortNotice notice{failure.culprit, static_cast<std::int32_t>(failure.cause)};
  told_ = bytes_of(notice) + std::string(failure.what()).substr(0, longest_reason);
  let_go_of_callers();
  wire_.answer_latecomers();
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || !wire_.connected(peer)) continue;
    // The peer may also want to report who called what, and this rank will not answer any more.
    if (first_hand) tell_status(peer);
    connected_to(peer);
  }
  say_whom_we_wait_for(-1);  // a thread answers questions, whatever this rank does
  return true;
}

// Ranks that connect late are told then.
void ControlMessages::connected_to(int peer) {
  if (have_ended() && !is_lost(peer)) outbox_.send_control(peer, FrameKind::abort, told_);
}

void ControlMessages::hear_abort(std::string_view text) {
  const auto [culprit, cause] = taken<AbortNotice>(text, "abort");
  end_all(Failure(cause_numbered(cause), culprit >= 0 && culprit < world_ ? culprit : -1, std::string(text)),
          false);
}

void ControlMessages::lost(int peer, const std::string& how, bool certain) {
  if (is_lost(peer)) return;
  peers_[peer].lost = how;
  peers_[peer].certain = certain;
  wire_.dispatch(peer);  // pending frames to it are gone, and nothing waits for them
  if (!closed(peer) && !lost_since_) lost_since_ = Clock::now();
}

bool ControlMessages::closed(int peer) const {
  const auto& bye = peers_[peer].bye;
  return bye && (messages_.have_come(peer, *bye) || !wire_.connected(peer));
}

void ControlMessages::say_bye() {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || is_lost(peer) || !wire_.connected(peer)) continue;
    outbox_.send_control(peer, FrameKind::bye, bytes_of(messages_.sent_to(peer)) + told_);
  }
}

void ControlMessages::hear_bye(int peer, std::string_view text) {
  const auto sent = taken<Messages::Counts>(text, "bye");
  if (!text.empty()) hear_abort(text);
  peers_[peer].bye = sent;
}

// --- losses and silence ----------------------------------------------------------------------------------

// A peer that was lost without having closed can never finish what it began.
void ControlMessages::check_losses() const {
  if (!lost_since_ || Clock::now() - *lost_since_ < loss_is_final) return;
  for (int peer = 0; peer < world_; ++peer) {
    if (!is_lost(peer) || closed(peer)) continue;
    throw Failure(Cause::peer_lost, peer, "rank " + std::to_string(peer) + " " + *peers_[peer].lost);
  }
}

void ControlMessages::check_peers(Backoff& backoff, int waiting_for) {
  check_agreement();
  if (waiting_for >= 0 && closed(waiting_for)) return backoff.found_closed(waiting_for, waiting_for, rank_);
  for (int peer = 0; peer < world_; ++peer) {
    const bool matters =
        waiting_for < 0 ? peer != rank_ && wire_.connected(peer) && !closed(peer) : peer == waiting_for;
    if (matters) check_silence(backoff.since, peer);
  }
}

void ControlMessages::check_silence(Clock::time_point since, int of_peer) {
  Peer& peer = peers_[of_peer];
  const auto now = Clock::now();
  if (std::exchange(peer.spoken, false)) peer.heard = now;
  if (now - std::max(peer.heard, since) < silence) return;
  ask(of_peer);
  wire_.look_after(of_peer);
}

// --- the agreement on survivors --------------------------------------------------------------------------

void ControlMessages::show(const Board& board) {
  own_board_ = board;
  boards_are_late_ = false;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer != rank_ && !is_lost(peer) && !closed(peer)) {
      outbox_.send_control(peer, FrameKind::board, packed(board));
    }
  }
}

// A peer's frames may overtake each other, but boards only grow.
void ControlMessages::hear_board(int peer, std::string_view text) {
  std::optional<Board> news = unpacked(text, world_);
  if (!news) throw Error("a malformed board");
  Board& known = peers_[peer].board;
  for (std::size_t i = 0; i < known.alive.size(); ++i) news->alive[i] &= known.alive[i];
  news->finished = std::max(news->finished, known.finished);
  if (news->step < known.step) {
    news->step = known.step;
    news->blob = std::move(known.blob);
  }
  known = std::move(*news);
}

bool ControlMessages::is_gone(int peer) {
  if (boards_are_late_) wire_.look_after(peer);
  return is_lost(peer) || closed(peer);
}

}  // namespace ringreduce
