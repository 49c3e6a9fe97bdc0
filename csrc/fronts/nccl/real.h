// The installed NCCL, for calls that this library does not serve.
#pragma once

#include "fronts/nccl/errors.h"
#include "gpu/libnccl/library.h"

namespace ringreduce::nccl_api {

inline void check_real(nccl::Result result) {
  if (result == nccl::success || result == nccl::in_progress) return;
  throw Refusal(result, std::string("NCCL: ") + NcclLibrary::get().get_last_error(nullptr));
}

// `name` without the prefix nccl.
template <class Function>
Function* real_function(const char* name) {
  const NcclLibrary& library = NcclLibrary::get();
  if (void* const found = library.find_function(name)) return reinterpret_cast<Function*>(found);
  throw Refusal(nccl::invalid_usage, "NCCL " + library.version_in_words() + " has no nccl" + name);
}

template <class Function, class... Arguments>
nccl::Result call_real(const char* name, Arguments... arguments) {
  return real_function<Function>(name)(arguments...);
}

}  // namespace ringreduce::nccl_api
