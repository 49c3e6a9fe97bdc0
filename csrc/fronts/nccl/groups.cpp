#include "fronts/nccl/groups.h"

#include <algorithm>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "fronts/nccl/real.h"
#include "transport/interface/thread.h"

namespace ringreduce::nccl_api {
namespace {

struct Kept {
  Member* member;
  Phase phase;
  std::function<void()> step;
  Posted message;
};

thread_local int depth = 0;
thread_local nccl::Result spoilt = nccl::success;
thread_local std::vector<Kept> kept;

void run_in_order(const Kept* begin, const Kept* end) {
  const auto run_all_of = [&](Phase phase) {
    for (const Kept* one = begin; one != end; ++one) {
      if (one->phase == phase) one->step();
    }
  };
  std::vector<Posted> messages;
  for (const Kept* one = begin; one != end; ++one) {
    if (one->phase == Phase::messages) messages.push_back(one->message);
  }
  run_all_of(Phase::launches);
  carry(*begin->member, messages);
  run_all_of(Phase::waits);
}

nccl::Result run_one_members(const Kept* begin, const Kept* end) noexcept {
  try {
    if (!begin->member->is_real()) {
      run_in_order(begin, end);
      return nccl::success;
    }
    check_real(NcclLibrary::get().group_start());
    try {
      run_in_order(begin, end);
    } catch (...) {
      NcclLibrary::get().group_end();
      throw;
    }
    check_real(NcclLibrary::get().group_end());
    return nccl::success;
  } catch (...) {
    return failed(std::current_exception(), begin->member->name());
  }
}

// Threads that begin when all of them have started, or never. The members wait for each other.
class Together {
 public:
  ~Together() {
    begin(false);
    for (std::thread& thread : threads_) thread.join();
  }
  void add(std::function<void()> what) {
    threads_.reserve(threads_.size() + 1);
    threads_.push_back(thread_without_signals([may = may_, what = std::move(what)] {
      if (may.get()) what();
    }));
  }
  void begin(bool may = true) {
    if (!std::exchange(begun_, true)) decided_.set_value(may);
  }

 private:
  std::promise<bool> decided_;
  const std::shared_future<bool> may_ = decided_.get_future().share();
  bool begun_ = false;
  std::vector<std::thread> threads_;
};

nccl::Result run_all(std::vector<Kept> all) {
  std::stable_sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.member < b.member; });
  std::vector<const Kept*> begins;
  for (const Kept& one : all) {
    if (begins.empty() || begins.back()->member != one.member) begins.push_back(&one);
  }
  if (begins.empty()) return nccl::success;
  std::vector<nccl::Result> results(begins.size());
  begins.push_back(all.data() + all.size());
  const auto refused = result_of([&] {
    Together threads;
    for (std::size_t i = 1; i < results.size(); ++i) {
      threads.add([&, i] { results[i] = run_one_members(begins[i], begins[i + 1]); });
    }
    threads.begin();
    results[0] = run_one_members(begins[0], begins[1]);
  });
  if (refused != nccl::success) return refused;
  const auto bad =
      std::find_if(results.begin(), results.end(), [](auto one) { return one != nccl::success; });
  return bad == results.end() ? nccl::success : *bad;
}

}  // namespace

bool in_group() {
  return depth > 0;
}

nccl::Result start_group() {
  if (depth++ == 0) spoilt = nccl::success;
  return nccl::success;
}

nccl::Result end_group() {
  if (depth == 0) {
    return result_of([] { throw Refusal(nccl::invalid_usage, "ncclGroupEnd without an ncclGroupStart"); });
  }
  if (--depth > 0) return nccl::success;
  std::vector<Kept> all;
  all.swap(kept);
  return spoilt != nccl::success ? spoilt : run_all(std::move(all));
}

void drop_group() {
  if (depth == 0) {
    throw Refusal(nccl::invalid_usage, "ncclGroupSimulateEnd without an ncclGroupStart");
  }
  if (--depth == 0) kept.clear();
}

nccl::Result spoil_group(nccl::Result result) {
  if (depth > 0 && spoilt == nccl::success) spoilt = result;
  return result;
}

void keep_for_group(Member& member, Phase phase, std::function<void()> step) {
  kept.push_back({&member, phase, std::move(step), {}});
}

void keep_for_group(Member& member, const Posted& message) {
  kept.push_back({&member, Phase::messages, nullptr, message});
}

}  // namespace ringreduce::nccl_api
