// Agreement among the living over a network: as in mapped_shrink.cpp, but what a rank says is sent to all.
#include <algorithm>
#include <cstring>

#include "transport/remote/remote.h"

namespace ringreduce {
namespace {

constexpr std::uint32_t steps_per_epoch = 16;  // more than an agreement has exchanges, each of two steps
constexpr std::chrono::milliseconds look_every{5};
constexpr std::chrono::milliseconds word_takes{300};  // of a dead rank's, from one who has heard it

struct BoardHeader {
  std::uint32_t step, finished, words;
};

bool has(const std::vector<std::uint64_t>& mask, int rank) {
  return mask[rank / 64] >> (rank % 64) & 1;
}
void strike(std::vector<std::uint64_t>& mask, int rank) {
  mask[rank / 64] &= ~(std::uint64_t{1} << (rank % 64));
}

[[noreturn]] void time_out(int peer) {
  throw Failure(
      Cause::timeout, peer,
      "shrink() timed out waiting for rank " + std::to_string(peer) + ", which lives but has not called it");
}

}  // namespace

void RemoteTransport::tell_board(int peer) {
  const BoardHeader head{own_board_.step, own_board_.finished,
                         static_cast<std::uint32_t>(own_board_.alive.size())};
  std::string text(reinterpret_cast<const char*>(&head), sizeof head);
  text.append(reinterpret_cast<const char*>(own_board_.alive.data()), own_board_.alive.size() * 8);
  tell(peer, FrameKind::board, text + own_board_.blob);
}

void RemoteTransport::hear_board(int peer, const std::string& text) {
  BoardHeader head{};
  if (text.size() < sizeof head) throw Error("a broken board");
  std::memcpy(&head, text.data(), sizeof head);
  const std::size_t words = static_cast<std::size_t>(world + 63) / 64;
  if (head.words != words || text.size() < sizeof head + words * 8) throw Error("a broken board");
  Board& board = peers_[peer].board;
  // Frames of one peer may overtake each other; boards only grow.
  Mask alive(words);
  std::memcpy(alive.data(), text.data() + sizeof head, words * 8);
  for (std::size_t i = 0; i < words && !board.alive.empty(); ++i) alive[i] &= board.alive[i];
  board.alive = std::move(alive);
  board.finished = std::max(board.finished, head.finished);
  if (head.step >= board.step) {
    board.step = head.step;
    board.blob = text.substr(sizeof head + words * 8);
  }
}

void RemoteTransport::wait_a_little(const std::function<void()>& tick) {
  tick();
  Lock lock(mutex_);
  progress(lock, look_every);
  let_others_look();
}

// Every rank says whom it believes alive, and strikes whom another living rank has struck or who was lost
// since. Masks only shrink, so all living ranks reach the same one; equal masks on all its members end it.
std::vector<int> RemoteTransport::survivors(Clock::time_point deadline, const std::function<void()>& tick) {
  auto changed = Clock::now();
  if (own_board_.alive.empty()) {
    own_board_.alive.resize(static_cast<std::size_t>(world + 63) / 64);
    for (int peer = 0; peer < world; ++peer) own_board_.alive[peer / 64] |= std::uint64_t{1} << (peer % 64);
  }
  for (bool say = true;;) {
    {
      const Lock lock(mutex_);
      Mask next = own_board_.alive;
      bool agreed = true;
      int missing = -1;
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank || !has(own_board_.alive, peer)) continue;
        const Board& theirs = peers_[peer].board;
        if (say) tell_board(peer);
        if (peers_[peer].lost || has_closed(peer)) {
          strike(next, peer);
        } else if (theirs.alive.empty()) {
          agreed = false;
          missing = peer;
          if (Clock::now() - changed > look_every) look_after(peer);
        } else {
          if (theirs.alive != own_board_.alive && missing < 0) missing = peer;
          agreed = agreed && theirs.alive == own_board_.alive;
          for (std::size_t i = 0; i < next.size(); ++i) next[i] &= theirs.alive[i];
        }
      }
      say = next != own_board_.alive;
      if (say) {
        own_board_.alive = next;
        changed = Clock::now();
        continue;
      }
      if (agreed) break;
      if (Clock::now() > deadline) time_out(missing);
    }
    wait_a_little(tick);
  }
  std::vector<int> members;
  for (int peer = 0; peer < world; ++peer) {
    if (has(own_board_.alive, peer)) members.push_back(peer);
  }
  return members;
}

// Whether a member has come so far, or another has seen that all had. Throws PeerLost where it never will.
bool RemoteTransport::step_reached(int peer, std::uint32_t wanted, std::uint32_t epoch,
                                   const std::vector<int>& members) {
  const Board& theirs = peers_[peer].board;
  if (theirs.step >= wanted && theirs.step < epoch + steps_per_epoch) return true;
  const auto finished = [&](int member) { return peers_[member].board.finished >= wanted; };
  if (std::any_of(members.begin(), members.end(), finished)) return true;
  const auto struck = [&](int member) { return !theirs.alive.empty() && !has(theirs.alive, member); };
  const bool agrees_anew = std::any_of(members.begin(), members.end(), struck);
  const bool gone = peers_[peer].lost && Clock::now() - lost_since_ > word_takes;
  if (theirs.step < wanted && !gone && !agrees_anew) return false;
  throw Failure(Cause::peer_lost, gone ? peer : -1, "a rank died during shrink()");
}

// Steps as in MappedTransport::exchange_among: blobs, then acknowledgements. Who has seen all of the latter
// says so: if a member dies after its last word reached some only, these let the others finish too.
std::vector<std::string> RemoteTransport::exchange_among(const std::vector<int>& members,
                                                         const std::string& blob, Clock::time_point deadline,
                                                         const std::function<void()>& tick) {
  const std::uint32_t epoch = static_cast<std::uint32_t>(world - members.size()) * steps_per_epoch;
  const std::uint32_t step = std::max(own_board_.step, epoch) + 1;
  std::vector<std::string> blobs(members.size());
  const auto tell_all = [&] {
    const Lock lock(mutex_);
    for (int peer : members) tell_board(peer);
  };
  const auto wait_for_all = [&](std::uint32_t wanted, bool keep) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const int peer = members[i];
      while (peer != rank) {
        {
          const Lock lock(mutex_);
          if (step_reached(peer, wanted, epoch, members)) break;
          look_after(peer);
        }
        if (Clock::now() > deadline) time_out(peer);
        wait_a_little(tick);
      }
      const Lock lock(mutex_);
      if (keep) blobs[i] = peer == rank ? blob : peers_[peer].board.blob;
    }
  };
  own_board_.blob = blob;
  own_board_.step = step;
  tell_all();
  wait_for_all(step, true);
  own_board_.step = step + 1;
  tell_all();
  wait_for_all(step + 1, false);
  own_board_.finished = step + 1;
  tell_all();
  return blobs;
}

}  // namespace ringreduce
