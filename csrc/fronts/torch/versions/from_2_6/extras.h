// torch 2.6: no additions.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ringreduce::torch_backend {

template <typename Base>
class Versioned : public Base {
 public:
  using Base::Base;

 protected:
  void completed(const c10d::Work&) {}
  void failed(bool) {}
};

}  // namespace ringreduce::torch_backend
