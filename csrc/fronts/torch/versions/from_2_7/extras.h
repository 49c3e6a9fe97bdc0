// torch 2.7 to 2.14: a backend reports its status.
#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ringreduce::torch_backend {

template <typename Base>
class Versioned : public Base {
 public:
  using Base::Base;
  c10d::ErrorType getError() override { return error_; }

 protected:
  void completed(const c10d::Work&) {}
  void failed(bool timed_out) { error_ = timed_out ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR; }

 private:
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
};

}  // namespace ringreduce::torch_backend
