// Agreement among the living: which ranks survive, and an exchange among them without a working collective.
#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "transport/memory/mapped.h"

namespace ringreduce {
namespace {

using Mask = std::array<std::uint64_t, shrink_words>;

constexpr std::uint32_t steps_per_epoch = 16;  // more than an agreement has exchanges, each of two steps
constexpr auto look_again = std::chrono::microseconds(200);

bool has(const Mask& mask, int rank) {
  return mask[rank / 64] >> (rank % 64) & 1;
}
void strike(Mask& mask, int rank) {
  mask[rank / 64] &= ~(std::uint64_t{1} << (rank % 64));
}

[[noreturn]] void time_out(int peer) {
  throw Failure(
      Cause::timeout, peer,
      "shrink() timed out waiting for rank " + std::to_string(peer) + ", which lives but has not called it");
}

// Version 0 means that the rank has not called shrink() yet.
bool read_mask(const ShrinkBoard& board, Mask& mask) {
  const std::uint32_t before = board.version.load(std::memory_order_acquire);
  if (before == 0 || before % 2 == 1) return false;
  for (int i = 0; i < shrink_words; ++i) mask[i] = board.alive[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  return board.version.load(std::memory_order_relaxed) == before;
}

void write_mask(ShrinkBoard& board, const Mask& mask) {
  const std::uint32_t version = board.version.load(std::memory_order_relaxed);
  board.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (int i = 0; i < shrink_words; ++i) board.alive[i].store(mask[i], std::memory_order_relaxed);
  board.version.store(version + 2, std::memory_order_release);
}

// Whether the board's owner counts one of these ranks as lost.
bool has_struck(const ShrinkBoard& board, const std::vector<int>& members) {
  Mask mask;
  if (!read_mask(board, mask)) return false;
  return !std::all_of(members.begin(), members.end(), [&](int rank) { return has(mask, rank); });
}

}  // namespace

// Every rank publishes whom it believes alive, and strikes whom another living rank has struck or who died
// since. Masks only shrink, over all attempts, so all living ranks reach the same one; equal masks on all its
// members end it.
std::vector<int> MappedTransport::survivors(Clock::time_point deadline, const std::function<void()>& tick) {
  if (world > 64 * shrink_words) {
    throw InvalidArgument("shrink() serves at most " + std::to_string(64 * shrink_words) + " ranks");
  }
  Mask mask{};
  if (!read_mask(header(rank).shrink, mask)) {
    for (int peer = 0; peer < world; ++peer) mask[peer / 64] |= std::uint64_t{1} << (peer % 64);
    write_mask(header(rank).shrink, mask);
  }
  while (true) {
    Mask next = mask;
    bool agreed = true;
    int missing = -1;
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank || !has(mask, peer)) continue;
      Mask theirs;
      if (!alive(peer) || closed(peer)) {
        strike(next, peer);
      } else if (!read_mask(header(peer).shrink, theirs)) {
        agreed = false;
        missing = peer;
      } else {
        if (theirs != mask && missing < 0) missing = peer;
        agreed = agreed && theirs == mask;
        for (int i = 0; i < shrink_words; ++i) next[i] &= theirs[i];
      }
    }
    if (next != mask) {
      mask = next;
      write_mask(header(rank).shrink, mask);
    } else if (agreed) {
      break;
    } else if (Clock::now() > deadline) {
      time_out(missing);
    }
    tick();
    std::this_thread::sleep_for(look_again);
  }
  std::vector<int> members;
  for (int peer = 0; peer < world; ++peer) {
    if (has(mask, peer)) members.push_back(peer);
  }
  return members;
}

// Each member's blob, in memory that each owner alone writes. A member may overwrite its blob with the next
// one only when all have read it, so blobs alternate with empty acknowledgements. A step's number begins with
// the number of ranks struck, which names the agreed mask: a member that has had to agree anew is ahead of
// us, and then we must too. Looking whether a member lives before looking how far it came lets all members
// finish if one did. Throws PeerLost where the survivors must agree again.
std::vector<std::string> MappedTransport::exchange_among(const std::vector<int>& members,
                                                         const std::string& blob, Clock::time_point deadline,
                                                         const std::function<void()>& tick) {
  if (blob.size() > blob_bytes) throw InvalidArgument("a blob of an exchange is too long");
  ShrinkBoard& own = header(rank).shrink;
  const std::uint32_t epoch = static_cast<std::uint32_t>(world - members.size()) * steps_per_epoch;
  const std::uint32_t step = std::max(own.blob_version.load(std::memory_order_relaxed), epoch) + 1;
  const auto wait_for = [&](int peer, std::uint32_t wanted) {
    while (true) {
      // First whether it lives, then how far it came: of a dead rank that is the last word, the same for all.
      const bool lives = alive(peer);
      const std::uint32_t there = header(peer).shrink.blob_version.load(std::memory_order_acquire);
      if (there >= wanted && there < epoch + steps_per_epoch) return;
      // A member that is agreeing anew will not come to this step; nor will those that wait for it.
      if (there >= wanted || !lives || has_struck(header(peer).shrink, members)) {
        throw Failure(Cause::peer_lost, lives ? -1 : peer, "a rank died during shrink()");
      }
      if (Clock::now() > deadline) time_out(peer);
      tick();
      std::this_thread::sleep_for(look_again);
    }
  };
  std::memcpy(own.blob, blob.data(), blob.size());
  own.blob_size = static_cast<std::uint32_t>(blob.size());
  own.blob_version.store(step, std::memory_order_release);
  std::vector<std::string> blobs;
  for (int peer : members) {
    wait_for(peer, step);
    const ShrinkBoard& theirs = header(peer).shrink;
    blobs.emplace_back(theirs.blob, std::min<std::size_t>(theirs.blob_size, blob_bytes));
  }
  own.blob_version.store(step + 1, std::memory_order_release);
  for (int peer : members) wait_for(peer, step + 1);
  return blobs;
}

}  // namespace ringreduce
