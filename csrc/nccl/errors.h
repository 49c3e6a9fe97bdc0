// How calls fail: with NCCL's codes, and the text that ncclGetLastError gives.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "transport/nccl/entry_points.h"

namespace ringreduce::nccl_api {

struct Refusal : std::runtime_error {
  Refusal(nccl::Result result, const std::string& text) : runtime_error(text), result(result) {}
  nccl::Result result;
};

// What the calling program gets for it. The text is kept for last_error(), behind `whose`.
nccl::Result failed(const std::exception_ptr& problem, const std::string& whose = "") noexcept;

// Of any thread's calls, since NCCL's is, too. Lasts until the calling thread asks again.
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
