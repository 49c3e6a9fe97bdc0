// The state that a process publishes about its groups for other processes of its user. `ringreduce diagnose`
// reads it, whether the process runs, hangs or is stopped. It lies in anonymous memory that is found through
// /proc, and vanishes with the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/interface/record.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// A wait that the owner reports now and then while it lasts.
struct PublishedWait {
  std::atomic<std::int32_t> peer;         // or -1
  std::atomic<std::int64_t> since, seen;  // ns of the steady clock; seen 0: never
  char what[112];                         // of a message, in words
};

// A group as one of its ranks sees it. Plain data that others read while it is written.
struct alignas(64) PublishedState {
  static constexpr std::uint64_t depth = 16;
  static constexpr int most_members = 256;
  enum class State : std::uint32_t { unused, open, failed, closed };

  std::atomic<State> state;
  std::int32_t rank, world;
  std::int32_t member_count;  // of what follows; 0: unknown
  std::uint64_t group;        // equal on the ranks of a group, and on no others
  std::uint64_t order;        // in which the process joined its groups
  char transport[16];
  // Written with every call.
  alignas(64) std::atomic<std::uint64_t> begun;  // the number of the latest collective
  std::atomic<std::uint64_t> ended;
  std::atomic<std::uint64_t> submitted, finished;  // collectives, to the progress thread
  alignas(64) Record records[depth];               // of collective n: at n % depth
  PublishedWait collective, message;
  char problem[512];                   // how the group failed
  std::int32_t members[most_members];  // the ranks' names in the job
  std::int16_t hosts[most_members];    // the numbers of their hosts
};

struct PublishedHead {
  char magic[16];
  std::int32_t pid;
  std::uint32_t states, bytes;  // their number, and the size of each
};

// The memory's name, and the place of its parts: the head, then the states, a page each.
inline constexpr const char* published_name = "ringreduce-published";
inline constexpr const char* published_magic = "published 1";
inline constexpr std::size_t published_page = 4096;
static_assert(sizeof(PublishedState) <= published_page);

// The part that is written once.
struct Introduction {
  int rank = 0, world = 1;
  std::uint64_t group = 0;
  std::string transport;
  std::vector<int> members;  // empty: the ranks have their own numbers as names
  std::vector<int> hosts;    // empty: all ranks share a host
};

// A group's published state, for as long as the group exists. Where the system grants no memory to share, or
// the process is in more groups than there are pages, nobody else sees it.
class PublishedGroup {
 public:
  explicit PublishedGroup(const Introduction& group);
  ~PublishedGroup();
  PublishedGroup(const PublishedGroup&) = delete;
  PublishedGroup& operator=(const PublishedGroup&) = delete;

  // The collective of the next number begins; its record is filled in.
  Record& next(std::uint64_t number) { return state_->records[number % PublishedState::depth]; }
  void began(std::uint64_t number) { state_->begun.store(number, std::memory_order_release); }
  void ended(std::uint64_t number) { state_->ended.store(number, std::memory_order_release); }
  void submitted() { state_->submitted.fetch_add(1, std::memory_order_relaxed); }
  void finished() { state_->finished.fetch_add(1, std::memory_order_relaxed); }
  // In a wait, every few milliseconds.
  void waits(int peer, Clock::time_point since);
  void waits_for_message(int peer, Clock::duration waited, const std::string& what);
  void over(PublishedState::State state, const std::string& problem = "");

 private:
  struct Board;
  static std::shared_ptr<Board> board();

  const std::shared_ptr<Board> board_;  // null: the state is private
  std::unique_ptr<PublishedState> private_;
  PublishedState* state_ = nullptr;
  const int pid_;
  std::mutex speaking_;  // several threads may wait for messages
};

}  // namespace ringreduce
