#include "fronts/nccl/errors.h"

#include <cstdlib>
#include <iterator>
#include <mutex>
#include <new>
#include <string_view>

#include "transport/interface/errors.h"
#include "transport/interface/log.h"

namespace ringreduce::nccl_api {
namespace {

std::mutex mutex;
auto& last = *new std::string;  // never destroyed: threads may outlive main

// As for NCCL's own warnings.
bool shown() {
  const char* const level = std::getenv("NCCL_DEBUG");
  return level && *level && std::string_view(level) != "VERSION";
}

nccl::Result keep(nccl::Result result, const std::string& text) {
  if (shown()) log::write_to_stderr("ringreduce: " + text + "\n");
  const std::lock_guard lock(mutex);
  last = text;
  return result;
}

nccl::Result result_for(Cause cause) {
  if (cause == Cause::mismatch) return nccl::invalid_usage;
  return cause == Cause::damaged ? nccl::system_error : nccl::remote_error;
}

}  // namespace

nccl::Result failed(const std::exception_ptr& problem, const std::string& whose) noexcept {
  try {
    std::rethrow_exception(problem);
  } catch (const Refusal& refusal) {
    return keep(refusal.result, whose + refusal.what());
  } catch (const Failure& failure) {
    return keep(result_for(failure.cause), whose + failure.what());
  } catch (const InvalidArgument& error) {
    return keep(nccl::invalid_argument, whose + error.what());
  } catch (const Closed& error) {
    return keep(nccl::invalid_usage, whose + error.what());
  } catch (const Error& error) {
    return keep(nccl::system_error, whose + error.what());
  } catch (const std::bad_alloc&) {
    return keep(nccl::system_error, whose + "out of memory");
  } catch (const std::exception& error) {
    return keep(nccl::internal_error, whose + error.what());
  } catch (...) {
    return keep(nccl::internal_error, whose + "unknown error");
  }
}

const char* last_error() {
  thread_local std::string copy;
  const std::lock_guard lock(mutex);
  return (copy = last).c_str();
}

const char* in_words(nccl::Result result) {
  constexpr const char* words[] = {// in the order of Result
                                   "no error",
                                   "a CUDA call failed",
                                   "a system call or a call to another library failed",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "another rank failed, or cannot be reached",
                                   "in progress"};
  return result < std::size(words) ? words[result] : "unknown result code";
}

}  // namespace ringreduce::nccl_api
