#include "fronts/torch/meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace ringreduce::torch_backend {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds first_word_after{5000};
constexpr std::chrono::milliseconds look_for_deaths_every{200};  // for ranks that die

const Bytes passed{1};  // the verdict on a meeting that all ranks have reached

std::chrono::milliseconds left(Clock::time_point deadline) {
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(rest, std::chrono::milliseconds(1));  // some stores take zero for no timeout
}

bool arrives(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout) {
  try {
    store.wait({key}, timeout);
    return true;
  } catch (const std::exception&) {
    if (store.check({key})) return true;  // it came in the last moment, or the store failed: then this throws
    return false;
  }
}

}  // namespace

std::string StoreMeeting::key(int round, int rank) const {
  return "ringreduce/" + std::to_string(round) + "/" + std::to_string(rank);
}

std::vector<Meeting::Blob> StoreMeeting::exchange(const Blob& blob) {
  if (world_ == 1) return {blob};  // a single rank needs no exchange
  const int round = rounds_++;
  const auto deadline = Clock::now() + timeout_;
  store_->set(key(round, rank_), Bytes(blob.begin(), blob.end()));
  std::vector<Blob> all;
  for (int r = 0; r < world_; ++r) {
    if (!arrives_in_time(key(round, r), r, deadline)) {
      C10_THROW_ERROR(DistBackendError, "ringreduce: rank " + std::to_string(rank_) + " waited " +
                                            std::to_string(timeout_.count()) + " ms for rank " +
                                            std::to_string(r) + " to join the process group");
    }
    const Bytes bytes = store_->get(key(round, r));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  // Every rank that reached this round has read the last one, which may have contained the group's secret.
  if (round > 0) store_->deleteKey(key(round - 1, rank_));
  return all;
}

// From time to time rank 0 logs which rank is missing.
bool StoreMeeting::arrives_in_time(const std::string& key, int rank, Clock::time_point deadline) {
  auto pause = first_word_after;
  for (; rank_ == 0 && says() && left(deadline) > pause; pause *= 2) {
    if (arrives(*store_, key, pause)) return true;
    say(rank_, ("waits for rank " + std::to_string(rank) + " to join the process group").c_str());
  }
  return arrives(*store_, key, left(deadline));
}

// The process that holds the store may end once its rank continues. No rank therefore continues before all
// have read everything, unless a rank is gone; errors of the store do not matter then.
void StoreMeeting::leave(const Group& group) {
  if (world_ == 1) return;
  const auto deadline = Clock::now() + timeout_;
  const std::string leaving = "ringreduce/leaving", all_leave = "ringreduce/all", gone = "ringreduce/gone";
  try {
    if (store_->add(leaving, 1) == world_) store_->set(all_leave, passed);
    while (!arrives(*store_, all_leave, std::min(left(deadline), look_for_deaths_every))) {
      if (Clock::now() > deadline || group.lacks_a_rank()) return;
    }
    if (store_->add(gone, 1) < world_) return;
    for (int r = 0; r < world_; ++r) store_->deleteKey(key(rounds_ - 1, r));
    for (const std::string& one : {leaving, all_leave, gone}) store_->deleteKey(one);
  } catch (const std::exception&) {
  }
}

void monitored_barrier(c10d::Store& store, int rank, int world, std::uint64_t number,
                       std::chrono::milliseconds timeout, bool wait_all_ranks) {
  const std::string base = "ringreduce/monitored/" + std::to_string(number) + "/";
  const auto deadline = Clock::now() + timeout;
  if (rank != 0) {
    store.set(base + std::to_string(rank), Bytes{1});
    // Rank 0 needs the whole timeout to find out who is missing, and then a moment to report it.
    std::string trouble = "it did not answer";
    if (arrives(store, base + "0", timeout + timeout / 2 + std::chrono::seconds(1))) {
      const Bytes verdict = store.get(base + "0");
      if (verdict == passed) return;
      trouble = "it says: " + std::string(verdict.begin(), verdict.end());
    }
    TORCH_CHECK(false, "ringreduce: Rank ", rank,
                " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0. Please check rank 0 logs for faulty rank: ",
                trouble);
  }
  TORCH_CHECK(timeout.count() > 0, "ringreduce: Rank 0 timed out in monitoredBarrier after 0 ms");
  std::string missing;
  int missed = 0;
  for (int r = 1; r < world; ++r) {
    if (arrives(store, base + std::to_string(r), left(deadline))) continue;
    missing += (missed++ ? ", " : "") + std::to_string(r);
    if (!wait_all_ranks) break;
  }
  std::string verdict;
  if (missed) {
    verdict = std::string("ringreduce: ") + (wait_all_ranks ? "Ranks " : "Rank ") + missing +
              " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) + " ms";
  }
  store.set(base + "0", verdict.empty() ? passed : Bytes(verdict.begin(), verdict.end()));
  TORCH_CHECK(verdict.empty(), verdict);
}

}  // namespace ringreduce::torch_backend
