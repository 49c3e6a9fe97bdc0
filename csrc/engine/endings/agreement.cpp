#include "engine/endings/agreement.h"

#include <algorithm>

#include "engine/endings/diagnosis.h"

namespace ringreduce {
namespace {

// More than the exchanges of a group until its next loss, of two steps each: one for every grow().
constexpr std::uint32_t steps_per_epoch = 1 << 18;

bool has(const std::vector<std::uint64_t>& mask, int rank) {
  return mask[rank / 64] >> (rank % 64) & 1;
}

void strike(std::vector<std::uint64_t>& mask, int rank) {
  mask[rank / 64] &= ~(std::uint64_t{1} << (rank % 64));
}

// A step's number begins with the number of ranks struck, which identifies the agreed mask. If a member had
// to agree again, its steps are ahead of ours, and we must agree again too.
std::uint32_t epoch_of(int world, const std::vector<int>& members) {
  return static_cast<std::uint32_t>(world - static_cast<int>(members.size())) * steps_per_epoch;
}

bool is_within(std::uint32_t step, std::uint32_t wanted) {
  return step >= wanted && step / steps_per_epoch == wanted / steps_per_epoch;
}

}  // namespace

// What this rank showed in an earlier attempt still holds.
Agreement::Agreement(Transport& transport, Clock::time_point deadline, std::function<void()> tick,
                     std::string call)
    : transport_(transport),
      deadline_(deadline),
      tick_(std::move(tick)),
      call_(std::move(call)),
      own_(transport.board(transport.rank)),
      gone_since_(static_cast<std::size_t>(transport.world)) {
  if (!own_.alive.empty()) return;
  own_.alive.resize(words_for(transport_.world));
  for (int peer = 0; peer < transport_.world; ++peer) {
    own_.alive[peer / 64] |= std::uint64_t{1} << (peer % 64);
  }
}

void Agreement::wait_for(int peer) {
  tick_();
  transport_.await_boards(peer);
  const auto now = Clock::now();
  if (now <= deadline_) return;
  const int late = Diagnosis(transport_).late_rank(peer, 0, now - began_);
  throw Failure(Cause::timeout, late,
                call_ + " timed out waiting for rank " + std::to_string(late) +
                    ", which is alive but has not called it");
}

// The combined contents of the others' boards.
struct Agreement::View {
  std::vector<std::uint64_t> alive;
  bool agreed = true;
  int missing = -1;  // a rank that has not come or does not agree yet
};

// Checks whether a rank is alive before it reads the rank's board: what a dead rank wrote is then final.
void Agreement::look_at(int peer, View& view) {
  if (transport_.is_gone(peer)) return strike(view.alive, peer);
  const std::vector<std::uint64_t> theirs = transport_.board(peer).alive;
  if (theirs != own_.alive) {
    view.agreed = false;
    if (view.missing < 0 || theirs.empty()) view.missing = peer;
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) view.alive[i] &= theirs[i];
}

// Every rank shows which ranks it believes alive. It strikes those that another living rank has struck, and
// those that have died since. Masks only shrink, over all attempts, so all living ranks reach the same one.
// Equal masks on all its members end the agreement.
std::vector<int> Agreement::survivors() {
  show();
  while (true) {
    View view{own_.alive};
    for (int peer = 0; peer < transport_.world; ++peer) {
      if (peer != transport_.rank && has(own_.alive, peer)) look_at(peer, view);
    }
    if (!has(view.alive, transport_.rank)) {
      throw Failure(Cause::peer_lost, transport_.rank,
                    "the other ranks continue without rank " + std::to_string(transport_.rank) +
                        ": one of them could not reach it");
    }
    if (view.alive != own_.alive) {
      own_.alive = view.alive;
      show();
      continue;
    }
    if (view.agreed) break;
    wait_for(view.missing);
  }
  std::vector<int> members;
  for (int peer = 0; peer < transport_.world; ++peer) {
    if (has(own_.alive, peer)) members.push_back(peer);
  }
  return members;
}

// Whether a member has reached this step, or another has seen that all members had. Throws PeerLost if it
// never will.
bool Agreement::has_come(int peer, std::uint32_t wanted, const std::vector<int>& members) {
  const bool is_gone = transport_.is_gone(peer);
  const Board theirs = transport_.board(peer);
  if (is_within(theirs.step, wanted)) return true;
  bool agrees_anew = theirs.step >= wanted;
  for (const int member : members) {
    const Board board = transport_.board(member);
    if (is_within(board.finished, wanted)) return true;
    agrees_anew = agrees_anew || (!board.alive.empty() && board.alive != own_.alive);
  }
  Clock::time_point& since = gone_since_[peer];
  if (is_gone && since == Clock::time_point()) since = Clock::now();
  const bool is_silent = is_gone && Clock::now() - since >= transport_.last_message_takes();
  if (!is_silent && !agrees_anew) return false;
  throw Failure(Cause::peer_lost, is_gone ? peer : -1, "a rank died during " + call_);
}

void Agreement::await_step(int peer, std::uint32_t wanted, const std::vector<int>& members) {
  while (peer != transport_.rank && !has_come(peer, wanted, members)) wait_for(peer);
}

// A member may overwrite its blob only when all have read it, so blobs alternate with empty acknowledgements.
// A member that has seen all of these shows it: if another dies after only some have seen its last word, the
// rest can still finish. Blobs begin with a letter for the call: a rank may die in a collective that ends on
// some ranks only, and these continue with grow() while the others shrink the group.
std::vector<std::string> Agreement::exchange(const std::vector<int>& members, const std::string& blob) {
  const std::uint32_t step = std::max(own_.step, epoch_of(transport_.world, members)) + 1;
  own_.blob = call_.front() + blob;
  if (own_.blob.size() > longest_blob) throw InvalidArgument("a blob of an exchange is too long");
  own_.step = step;
  show();
  std::vector<std::string> blobs;
  for (const int peer : members) {
    await_step(peer, step, members);
    blobs.push_back(transport_.board(peer).blob);
  }
  own_.step = step + 1;
  show();
  for (const int peer : members) await_step(peer, step + 1, members);
  own_.finished = step + 1;
  show();
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    if (!blobs[i].starts_with(call_.front())) {
      throw OtherCall(Cause::peer_lost, members[i],
                      "rank " + std::to_string(members[i]) + " is in another call than " + call_);
    }
    blobs[i].erase(0, 1);
  }
  return blobs;
}

// In parts, for groups of many ranks.
std::vector<int> Agreement::unreachable(const std::vector<int>& members) {
  std::vector<int> others, found;
  for (int peer = 0; peer < transport_.world; ++peer) {
    if (!has(own_.alive, peer)) others.push_back(peer);
  }
  constexpr std::size_t part = longest_blob - 1;
  for (std::size_t first = 0; first < others.size(); first += part) {
    const std::size_t last = std::min(others.size(), first + part);
    std::string own;
    for (std::size_t i = first; i < last; ++i) own += transport_.has_ended(others[i]) ? 'e' : 'u';
    const auto told = exchange(members, own);
    for (std::size_t i = first; i < last; ++i) {
      const auto unsure = [&](const std::string& of_one) { return of_one.at(i - first) == 'u'; };
      if (std::all_of(told.begin(), told.end(), unsure)) found.push_back(others[i]);
    }
  }
  return found;
}

}  // namespace ringreduce
