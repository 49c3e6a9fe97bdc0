// A single call as steps, with copies of what it points to but its buffers.
#pragma once

#include "engine/planning/call.h"

namespace ringreduce {

class OneCall : public Steps {
 public:
  explicit OneCall(const Call& call) : call_(call) {
    if (!call.input_extents) return;
    input_ = *call.input_extents;
    output_ = *call.output_extents;
    call_.input_extents = &input_;
    call_.output_extents = &output_;
  }
  bool next(Call& call) override {
    if (over_) return false;
    over_ = true;
    call = call_;
    return true;
  }

 private:
  Call call_;
  Extents input_, output_;
  bool over_ = false;
};

}  // namespace ringreduce
