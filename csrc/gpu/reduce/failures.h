// Ends exceptions where C begins.
#pragma once

#include <exception>
#include <string>

namespace ringreduce::device {

// Calls function(); returns null, or the text of its exception.
template <class Function>
const char* failure_of(Function function) noexcept {
  static thread_local std::string failure;
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}

}  // namespace ringreduce::device
