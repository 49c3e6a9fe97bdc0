// torch 2.15 and later: hooks that the flight recorder listens to.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Hooks.hpp>

namespace ringreduce::torch_backend {

template <typename Base>
class Versioned : public Base {
 public:
  using Base::Base;
  c10d::ErrorType getError() override { return error_; }

  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override {
    const std::lock_guard lock(hooks_mutex_);
    abort_hooks_[id] = std::move(hook);
  }
  void unregisterAbortHook(std::int64_t id) override {
    const std::lock_guard lock(hooks_mutex_);
    abort_hooks_.erase(id);
  }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override {
    const std::lock_guard lock(hooks_mutex_);
    completion_hooks_[id] = std::move(hook);
    any_ = true;
  }
  void unregisterCompletionHook(std::int64_t id) override {
    const std::lock_guard lock(hooks_mutex_);
    completion_hooks_.erase(id);
    any_ = !completion_hooks_.empty();
  }

 protected:
  void completed(const c10d::Work& work) {
    if (!any_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(hooks_mutex_);
    for (const auto& [id, hook] : completion_hooks_) hook({work.getCompletionKey(), std::nullopt});
  }
  void failed(bool timed_out) {
    error_ = timed_out ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
    const std::lock_guard lock(hooks_mutex_);
    for (const auto& [id, hook] : abort_hooks_) hook();
  }

 private:
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::mutex hooks_mutex_;
  std::map<std::int64_t, c10d::AbortHook> abort_hooks_;
  std::map<std::int64_t, c10d::CompletionHook> completion_hooks_;
  std::atomic<bool> any_{false};
};

}  // namespace ringreduce::torch_backend
