// torch 2.15 and later: hooks for the flight recorder, and groups whose ranks change.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Hooks.hpp>

#include "fronts/torch/callbacks.h"

namespace ringreduce::torch_backend {

// Functions to call on an event, each with a number by which it can be removed.
template <typename Hook>
class Hooks {
 public:
  void add(std::int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
    any_ = true;
  }
  void remove(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
    any_ = !hooks_.empty();
  }
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::map<std::int64_t, Hook> all() const {
    const std::lock_guard lock(mutex_);
    return hooks_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
  std::atomic<bool> any_{false};
};

// The name of a rank for those who form a group with it; unique among all backends.
inline std::string new_handle() {
  std::random_device random;
  char text[48];
  std::snprintf(text, sizeof text, "ringreduce-%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

template <typename Base>
class Versioned : public Base {
 public:
  using Base::Base;
  c10d::ErrorType getError() override { return error_; }

  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override {
    abort_hooks_.add(id, std::move(hook));
  }
  void unregisterAbortHook(std::int64_t id) override { abort_hooks_.remove(id); }

  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override {
    completion_hooks_.add(id, std::move(hook));
  }
  void unregisterCompletionHook(std::int64_t id) override { completion_hooks_.remove(id); }

  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }

  // The members meet in the store that all of them were given, under a prefix that only they know.
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& options) override {
    const auto* ordered = std::get_if<std::vector<c10d::ReconfigureHandle>>(&options.handles);
    std::vector<std::string> members;
    if (ordered) {
      members = *ordered;
    } else {
      const auto& set = std::get<std::unordered_set<c10d::ReconfigureHandle>>(options.handles);
      members.assign(set.begin(), set.end());
      std::sort(members.begin(), members.end());
    }
    TORCH_CHECK(std::set<std::string>(members.begin(), members.end()).size() == members.size(),
                "ringreduce: reconfigure() received a handle twice");
    const auto me = std::find(members.begin(), members.end(), handle_);
    TORCH_CHECK(me != members.end(), "ringreduce: reconfigure() did not receive this rank's own handle, ",
                handle_);
    TORCH_CHECK(used_.insert(options.uuid).second, "ringreduce: reconfigure() received the uuid ",
                options.uuid, " before; each call needs a new one");
    const int rank = static_cast<int>(me - members.begin());
    const int size = static_cast<int>(members.size());
    regroup("ringreduce/reconfigure/" + std::to_string(options.uuid), rank, size, options.timeout);
    this->rank_ = rank;
    this->size_ = size;
    error_ = c10d::ErrorType::SUCCESS;
    return c10::make_intrusive<Regrouped>(rank);
  }
  virtual void regroup(const std::string& prefix, int rank, int size,
                       std::optional<std::chrono::milliseconds> timeout) = 0;

 protected:
  void completed(const c10d::Work& work) {
    if (!completion_hooks_.any()) return;
    for (const auto& [id, hook] : completion_hooks_.all()) hook({work.getCompletionKey(), std::nullopt});
  }
  // A hook may take long (the flight recorder's takes seconds to name the functions in its stack traces),
  // take the GIL or remove itself. Waiters for the operation are told at once.
  void failed(bool timed_out) {
    error_ = timed_out ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
    if (!abort_hooks_.any()) return;
    const auto tell_all = [hooks = abort_hooks_.all()] {
      for (const auto& [id, hook] : hooks) {
        try {
          hook();
        } catch (const std::exception& error) {
          TORCH_WARN("ringreduce: an abort hook failed: ", error.what());
        }
      }
    };
    call_back(tell_all);
  }

 private:
  // A completed work.
  class Regrouped : public c10d::Work {
   public:
    explicit Regrouped(int rank) : Work(rank) { this->finish(); }
  };

  const std::string handle_ = new_handle();
  std::set<std::int64_t> used_;
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  Hooks<c10d::AbortHook> abort_hooks_;
  Hooks<c10d::CompletionHook> completion_hooks_;
};

}  // namespace ringreduce::torch_backend
