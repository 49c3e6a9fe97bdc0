#include "engine/accounting/published_state.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "transport/interface/cut.h"
#include "transport/interface/of_process.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {
namespace {

constexpr std::uint32_t most_groups = 255;

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

template <std::size_t room>
void write(char (&to)[room], const std::string& text) {
  const std::size_t length = length_within(text, room - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

}  // namespace

struct PublishedGroup::Board {
  std::shared_ptr<SharedMemory> memory =
      SharedMemory::make(published_page * (most_groups + 1), published_name);
  std::mutex mutex;
  std::uint64_t made = 0;

  Board() {
    if (memory->fd.get() < 0) throw std::bad_alloc();
    auto* head = new (memory->base) PublishedHead{{}, getpid(), most_groups, published_page};
    std::strcpy(head->magic, published_magic);
  }
  // A page that is not in use, or null.
  PublishedState* take() {
    for (std::uint32_t i = 1; i <= most_groups; ++i) {
      auto* published = reinterpret_cast<PublishedState*>(memory->base + published_page * i);
      if (published->state.load(std::memory_order_acquire) == PublishedState::State::unused) return published;
    }
    return nullptr;
  }
};

// One for all groups of the process, and gone with the last. The child of a fork has its own.
std::shared_ptr<PublishedGroup::Board> PublishedGroup::board() {
  struct Current {
    std::mutex mutex;
    std::weak_ptr<Board> board;
  };
  auto& current = of_process<Current>();
  const std::lock_guard lock(current.mutex);
  auto found = current.board.lock();
  if (found) return found;
  try {
    found = std::make_shared<Board>();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  current.board = found;
  return found;
}

PublishedGroup::PublishedGroup(const Introduction& group) : board_(board()), pid_(getpid()) {
  std::unique_lock<std::mutex> lock;
  if (board_) {
    lock = std::unique_lock(board_->mutex);
    state_ = board_->take();
  }
  if (!state_) {
    private_ = std::make_unique<PublishedState>();
    state_ = private_.get();
  }
  new (state_) PublishedState();
  state_->rank = group.rank;
  state_->world = group.world;
  state_->group = group.group;
  state_->order = board_ ? ++board_->made : 0;
  write(state_->transport, group.transport);
  if (group.world <= PublishedState::most_members) {
    state_->member_count = group.world;
    for (int r = 0; r < group.world; ++r) {
      state_->members[r] = group.members.empty() ? r : group.members[r];
      state_->hosts[r] = static_cast<std::int16_t>(group.hosts.empty() ? 0 : group.hosts[r]);
    }
  }
  state_->state.store(PublishedState::State::open, std::memory_order_release);
}

// In the child of a fork, the page is the parent's.
PublishedGroup::~PublishedGroup() {
  if (private_ || getpid() != pid_) return;
  state_->state.store(PublishedState::State::unused, std::memory_order_release);
}

void PublishedGroup::waits(int peer, Clock::time_point since) {
  PublishedWait& wait = state_->collective;
  wait.peer.store(peer, std::memory_order_relaxed);
  wait.since.store(nanoseconds(since), std::memory_order_relaxed);
  wait.seen.store(nanoseconds(Clock::now()), std::memory_order_release);
}

void PublishedGroup::waits_for_message(int peer, Clock::duration waited, const std::string& what) {
  const std::lock_guard lock(speaking_);
  PublishedWait& wait = state_->message;
  const auto now = Clock::now();
  wait.peer.store(peer, std::memory_order_relaxed);
  wait.since.store(nanoseconds(now - waited), std::memory_order_relaxed);
  write(wait.what, what);
  wait.seen.store(nanoseconds(now), std::memory_order_release);
}

void PublishedGroup::over(PublishedState::State state, const std::string& problem) {
  if (!problem.empty()) write(state_->problem, problem);
  state_->state.store(state, std::memory_order_release);
}

}  // namespace ringreduce
