// How calls fail: with NCCL's codes, and the text that ncclGetLastError returns.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "gpu/libnccl/entry_points.h"

namespace ringreduce::nccl_api {

struct Refusal : std::runtime_error {
  Refusal(nccl::Result result, const std::string& text) : runtime_error(text), result(result) {}
  nccl::Result result;
};

// The code for the calling program. The text is kept for last_error(), after `whose`.
nccl::Result failed(const std::exception_ptr& problem, const std::string& whose = "") noexcept;

// From any thread's calls, as in NCCL. Valid until the calling thread asks again.
const char* last_error();

const char* in_words(nccl::Result result);

template <class Step>
nccl::Result result_of(Step step) noexcept {
  try {
    step();
    return nccl::success;
  } catch (...) {
    return failed(std::current_exception());
  }
}

}  // namespace ringreduce::nccl_api
