#include "gpu/libnccl/library.h"

#include <dlfcn.h>

#include <atomic>

#include "transport/interface/environment.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr const char* nccl_file = "libnccl.so.2";
constexpr const char* nccl_variable = "RINGREDUCE_NCCL_LIBRARY";

std::atomic<NcclLibrary::Finder> elsewhere{nullptr};

// Exported by csrc/fronts/nccl, which programs load in place of libnccl.
constexpr const char* mark_of_stand_in = "ringreduce_nccl";

// Null: `problem` has the reason. Beside the stand-in, NCCL must find its own functions first.
void* load(const std::string& path, std::string& problem) {
  const int its_own_first = dlsym(RTLD_DEFAULT, mark_of_stand_in) ? RTLD_DEEPBIND : 0;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | its_own_first);
  if (!library) {
    problem = dlerror();
  } else if (dlsym(library, mark_of_stand_in)) {
    problem = path + " is ringreduce's library, which stands in for NCCL";
    return nullptr;
  }
  return library;
}

std::string in_words(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

void NcclLibrary::set_finder(Finder finder) {
  elsewhere = finder;
}

std::string NcclLibrary::version_in_words() const {
  return in_words(version_);
}

void* NcclLibrary::find_function(const char* name) const {
  return dlsym(library_, (std::string("nccl") + name).c_str());
}

template <class Function>
void NcclLibrary::find_function(Function& function, const char* name) {
  void* const found = find_function(name);
  if (!found) throw Error("NCCL's library " + path_ + " has no nccl" + name);
  function = reinterpret_cast<Function>(found);
}

// The library stays loaded, because its threads and kernels may outlive its users.
NcclLibrary::NcclLibrary() {
  const std::string chosen = environment(nccl_variable);
  path_ = chosen.empty() ? nccl_file : chosen;
  std::string problem;
  library_ = load(path_, problem);
  if (!library_ && chosen.empty()) {
    const Finder finder = elsewhere;
    const std::string found = finder ? finder() : "";
    if (!found.empty()) library_ = load(path_ = found, problem);
    problem += std::string("; ") + nccl_variable + " can name NCCL's library";
  }
  if (!library_) throw Error("NCCL cannot be loaded: " + problem);
  find_function(get_version, "GetVersion");
  get_version(&version_);
  if (version_ < nccl::oldest_version) {
    throw Error("NCCL's library " + path_ + " has version " + in_words(version_) + ", but " +
                in_words(nccl::oldest_version) + " is the oldest supported");
  }
#define RINGREDUCE_FIND(name, function) find_function(name, #function);
  RINGREDUCE_NCCL_FUNCTIONS(RINGREDUCE_FIND)
#undef RINGREDUCE_FIND
  enroll = reinterpret_cast<nccl::CommRegister*>(find_function("CommRegister"));
  withdraw = reinterpret_cast<nccl::CommDeregister*>(find_function("CommDeregister"));
}

const NcclLibrary& NcclLibrary::get() {
  static const NcclLibrary library;  // tried again after a failure
  return library;
}

}  // namespace ringreduce
