// Agreement among the living: which ranks survive, and an exchange among them without a working collective.
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/mapped.h"

namespace ringreduce {
namespace {

using Mask = std::array<std::uint64_t, shrink_words>;

bool has(const Mask& mask, int rank) { return mask[rank / 64] >> (rank % 64) & 1; }

[[noreturn]] void time_out(int peer) {
  throw Failure(Cause::timeout, peer,
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

}  // namespace

// Every rank publishes whom it believes alive, and strikes whom another living rank has struck or who died
// since. Masks only shrink, so all living ranks reach the same one; equal masks on all its members end it.
std::vector<int> MappedTransport::survivors(Clock::time_point deadline) {
  if (world > 64 * shrink_words) {
    throw InvalidArgument("shrink() serves at most " + std::to_string(64 * shrink_words) + " ranks");
  }
  Mask mask{};
  for (int peer = 0; peer < world; ++peer) mask[peer / 64] |= std::uint64_t{1} << (peer % 64);
  write_mask(header(rank).shrink, mask);
  while (true) {
    Mask next = mask;
    bool agreed = true;
    int missing = -1;
    for (int peer = 0; peer < world; ++peer) {
      if (peer == rank || !has(mask, peer)) continue;
      Mask theirs;
      if (!alive(peer) || closed(peer)) {
        next[peer / 64] &= ~(std::uint64_t{1} << (peer % 64));
      } else if (!read_mask(header(peer).shrink, theirs)) {
        agreed = false;
        missing = peer;
      } else {
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
    sched_yield();
  }
  std::vector<int> members;
  for (int peer = 0; peer < world; ++peer) {
    if (has(mask, peer)) members.push_back(peer);
  }
  return members;
}

// Each member's n-th blob, in memory that each owner alone writes. A member may overwrite its n-th blob with
// the next one only when all have read it, so blobs alternate with empty acknowledgements.
std::vector<std::string> MappedTransport::exchange_among(const std::vector<int>& members, const std::string& blob,
                                                         Clock::time_point deadline) {
  if (blob.size() > blob_bytes) throw InvalidArgument("a blob of an exchange is too long");
  ShrinkBoard& own = header(rank).shrink;
  const std::uint32_t version = own.blob_version.load(std::memory_order_relaxed);
  std::memcpy(own.blob, blob.data(), blob.size());
  own.blob_size = static_cast<std::uint32_t>(blob.size());
  own.blob_version.store(version + 1, std::memory_order_release);
  const auto wait_for = [&](int peer, std::uint32_t wanted) {
    while (header(peer).shrink.blob_version.load(std::memory_order_acquire) < wanted) {
      if (!alive(peer)) throw Failure(Cause::peer_lost, peer, "rank " + std::to_string(peer) + " died during shrink()");
      if (Clock::now() > deadline) time_out(peer);
      sched_yield();
    }
  };
  std::vector<std::string> blobs;
  for (int peer : members) {
    wait_for(peer, version + 1);
    const ShrinkBoard& theirs = header(peer).shrink;
    blobs.emplace_back(theirs.blob, std::min<std::size_t>(theirs.blob_size, blob_bytes));
  }
  own.blob_version.store(version + 2, std::memory_order_release);
  for (int peer : members) wait_for(peer, version + 2);
  return blobs;
}

}  // namespace ringreduce
