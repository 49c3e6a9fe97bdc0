#include "gpu/libnccl/group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

// A sleep takes longer than most operations.
constexpr int looks_without_sleep = 500;
constexpr std::chrono::microseconds look_at_first_every{20}, look_later_every{1000};
constexpr int first_looks = 50;
constexpr std::chrono::seconds patience_with_threads{1};

// Returns when `over` is true, or the time is up.
template <class Over>
bool wait_until(Clock::time_point deadline, const NcclGroup::Tick& tick, Over over) {
  for (int looks = 0; !over(); ++looks) {
    if (Clock::now() >= deadline) return false;
    const int sleeps = looks - looks_without_sleep;
    if (sleeps >= 0 || looks % 16 == 15) tick();
    if (sleeps < 0) {
      std::this_thread::yield();  // other ranks may need this core
    } else {
      std::this_thread::sleep_for(sleeps < first_looks ? look_at_first_every : look_later_every);
    }
  }
  return true;
}

std::string seconds(Clock::duration duration) {
  std::string text = std::to_string(std::chrono::duration<double>(duration).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

NcclGroup::NcclGroup(int rank, int world, int min_blocks, int max_blocks, Clock::duration timeout,
                     const Exchange& exchange, const Tick& tick)
    : nccl_(NcclLibrary::get()), timeout_(timeout) {
  const auto ids = exchange_or_fail(exchange, [&] {
    nccl::UniqueId id{};
    if (rank == 0) check(nccl_.get_unique_id(&id), "making an id");
    return std::string(id.internal, sizeof id.internal);
  });
  nccl::UniqueId id{};
  std::memcpy(id.internal, ids[0].data(), sizeof id.internal);
  nccl::Config config;
  config.blocking = 0;
  if (min_blocks > 0) config.min_ctas = std::min(min_blocks, nccl::most_ctas);
  if (max_blocks > 0) config.max_ctas = std::min(max_blocks, nccl::most_ctas);
  try {
    join(rank, world, config, id, exchange, tick);
  } catch (...) {
    abort();
    throw;
  }
}

// The first exchange reports immediate failures, and the second which ranks have met.
void NcclGroup::join(int rank, int world, nccl::Config config, const nccl::UniqueId& id,
                     const Exchange& exchange, const Tick& tick) {
  constexpr const char* what = "joining the ranks";
  exchange_or_fail(exchange, [&] {
    check(nccl_.init(&comm_, world, id, rank, &config), what);
    return std::string();
  });
  // A rank that is interrupted still tells the others.
  std::exception_ptr broken_off;
  const auto wait = [&] {
    try {
      const auto lock = occupy();
      // The other half of the time is for telling the others.
      complete(nccl::in_progress, what, tick, timeout_ / 2);
    } catch (const Interrupted&) {
      broken_off = std::current_exception();
      throw Error("the rank was interrupted");
    }
    return std::string();
  };
  try {
    exchange_or_fail(exchange, wait);
  } catch (const Error&) {
    if (broken_off) std::rethrow_exception(broken_off);
    throw;
  }
}

NcclGroup::~NcclGroup() {
  abort();
}

std::unique_lock<std::timed_mutex> NcclGroup::occupy() {
  std::unique_lock lock(busy_);
  if (aborted_) throw Error("NCCL's communicator was aborted");
  return lock;
}

std::string NcclGroup::in_words(nccl::Result result, const char* what) const {
  std::string text = std::string("NCCL, ") + what + ": " + nccl_.get_error_string(result);
  const char* const last = nccl_.get_last_error(comm_);
  if (last && *last) text += std::string(" (") + last + ")";
  return text;
}

void NcclGroup::check(nccl::Result result, const char* what) const {
  if (result != nccl::success && result != nccl::in_progress) throw Error(in_words(result, what));
}

nccl::Result NcclGroup::state() const {
  nccl::Result state = nccl::success;
  const nccl::Result asked = nccl_.get_async_error(comm_, &state);
  return asked == nccl::success ? state : asked;
}

void NcclGroup::complete(nccl::Result result, const char* what, const Tick& tick) {
  complete(result, what, tick, timeout_);
}

void NcclGroup::complete(nccl::Result result, const char* what, const Tick& tick, Clock::duration timeout) {
  if (result == nccl::success) return;
  check(result, what);
  const bool in_time = wait_until(Clock::now() + timeout, tick, [&] {
    if (aborted_) throw Error("NCCL's communicator was aborted");
    result = state();
    return result != nccl::in_progress;
  });
  if (!in_time) {
    throw Failure(Cause::timeout, -1,
                  std::string("NCCL, ") + what + ": other ranks did not arrive within " + seconds(timeout));
  }
  check(result, what);
}

// Does not wait for the lock: a thread that is about to use the group looks for failures anyway.
std::string NcclGroup::failure() {
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_ || !comm_) return "";
  const nccl::Result now = state();
  return now == nccl::success || now == nccl::in_progress ? "" : in_words(now, "while operations run");
}

// --- memory ------------------------------------------------------------------------------------------------

void NcclGroup::enroll(void* memory, std::size_t bytes, const Tick& tick) {
  if (!nccl_.enroll) {
    throw InvalidArgument("registering memory needs NCCL 2.19 or later; this is NCCL " +
                          nccl_.version_in_words());
  }
  const auto lock = occupy();
  void* handle = nullptr;
  complete(nccl_.enroll(comm_, memory, bytes, &handle), "registering memory", tick);
  enrolled_[memory] = handle;
}

void NcclGroup::withdraw(void* memory, const Tick& tick) {
  const auto lock = occupy();
  const auto found = enrolled_.find(memory);
  if (found == enrolled_.end()) return;  // the group has met since
  void* const handle = found->second;
  enrolled_.erase(found);
  complete(nccl_.withdraw(comm_, handle), "deregistering memory", tick);
}

// --- ending ------------------------------------------------------------------------------------------------

void NcclGroup::finish(Clock::duration patience, const Tick& tick) {
  const auto lock = occupy();
  for (const auto& [memory, handle] : enrolled_) nccl_.withdraw(comm_, handle);
  enrolled_.clear();
  nccl::Result result = nccl_.finalize(comm_);
  const bool in_time = wait_until(Clock::now() + patience, tick, [&] {
    if (result == nccl::in_progress) result = state();
    return result != nccl::in_progress;
  });
  if (in_time && result != nccl::success) return;  // and is aborted
  aborted_ = true;
  if (in_time) nccl_.destroy(comm_);
}

// A thread that does not give way is inside NCCL, and another thread's abort ends its call.
void NcclGroup::abort() {
  if (aborted_.exchange(true)) return;
  const std::unique_lock lock(busy_, patience_with_threads);
  if (comm_) nccl_.abort(comm_);
}

// --- together ----------------------------------------------------------------------------------------------

NcclTogether::NcclTogether(NcclGroup& group) : group_(group) {
  group_.check(group_.library().group_start(), "beginning a group");
}

NcclTogether::~NcclTogether() {
  if (open_) group_.library().group_end();
}

void NcclTogether::end(const char* what, const NcclGroup::Tick& tick) {
  open_ = false;
  group_.complete(group_.library().group_end(), what, tick);
}

}  // namespace ringreduce
