#include "engine/accounting/notice.h"

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

struct ShownGroup::Board {
  std::shared_ptr<SharedMemory> memory = SharedMemory::make(notice_page * (most_groups + 1), notices_name);
  std::mutex mutex;
  std::uint64_t made = 0;

  Board() {
    if (memory->fd.get() < 0) throw std::bad_alloc();
    auto* head = new (memory->base) NoticeHead{{}, getpid(), most_groups, notice_page};
    std::strcpy(head->magic, notices_magic);
  }
  // A page that is not in use, or null.
  Notice* take() {
    for (std::uint32_t i = 1; i <= most_groups; ++i) {
      auto* notice = reinterpret_cast<Notice*>(memory->base + notice_page * i);
      if (notice->state.load(std::memory_order_acquire) == Notice::State::unused) return notice;
    }
    return nullptr;
  }
};

// One for all groups of the process, and gone with the last. The child of a fork has its own.
std::shared_ptr<ShownGroup::Board> ShownGroup::board() {
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

ShownGroup::ShownGroup(const Introduction& group) : board_(board()), pid_(getpid()) {
  std::unique_lock<std::mutex> lock;
  if (board_) {
    lock = std::unique_lock(board_->mutex);
    notice_ = board_->take();
  }
  if (!notice_) {
    private_ = std::make_unique<Notice>();
    notice_ = private_.get();
  }
  new (notice_) Notice();
  notice_->rank = group.rank;
  notice_->world = group.world;
  notice_->group = group.group;
  notice_->order = board_ ? ++board_->made : 0;
  write(notice_->transport, group.transport);
  if (group.world <= Notice::most_members) {
    notice_->member_count = group.world;
    for (int r = 0; r < group.world; ++r) {
      notice_->members[r] = group.members.empty() ? r : group.members[r];
      notice_->hosts[r] = static_cast<std::int16_t>(group.hosts.empty() ? 0 : group.hosts[r]);
    }
  }
  notice_->state.store(Notice::State::open, std::memory_order_release);
}

// In the child of a fork, the page is the parent's.
ShownGroup::~ShownGroup() {
  if (private_ || getpid() != pid_) return;
  notice_->state.store(Notice::State::unused, std::memory_order_release);
}

void ShownGroup::waits(int peer, Clock::time_point since) {
  WaitShown& wait = notice_->collective;
  wait.peer.store(peer, std::memory_order_relaxed);
  wait.since.store(nanoseconds(since), std::memory_order_relaxed);
  wait.seen.store(nanoseconds(Clock::now()), std::memory_order_release);
}

void ShownGroup::waits_for_message(int peer, Clock::duration waited, const std::string& what) {
  const std::lock_guard lock(speaking_);
  WaitShown& wait = notice_->message;
  const auto now = Clock::now();
  wait.peer.store(peer, std::memory_order_relaxed);
  wait.since.store(nanoseconds(now - waited), std::memory_order_relaxed);
  write(wait.what, what);
  wait.seen.store(nanoseconds(now), std::memory_order_release);
}

void ShownGroup::over(Notice::State state, const std::string& problem) {
  if (!problem.empty()) write(notice_->problem, problem);
  notice_->state.store(state, std::memory_order_release);
}

}  // namespace ringreduce
