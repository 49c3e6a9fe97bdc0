// libnccl, loaded at run time, so that one build serves machines with and without it.
#pragma once

#include <string>

#include "gpu/libnccl/entry_points.h"

namespace ringreduce {

// What every supported version has besides GetVersion: X(name here, name there without nccl)
#define RINGREDUCE_NCCL_FUNCTIONS(X)         \
  X(get_error_string, GetErrorString)        \
  X(get_last_error, GetLastError)            \
  X(get_unique_id, GetUniqueId)              \
  X(init, CommInitRankConfig)                \
  X(get_async_error, CommGetAsyncError)      \
  X(finalize, CommFinalize)                  \
  X(destroy, CommDestroy)                    \
  X(abort, CommAbort)                        \
  X(group_start, GroupStart)                 \
  X(group_end, GroupEnd)                     \
  X(send, Send)                              \
  X(recv, Recv)                              \
  X(all_reduce, AllReduce)                   \
  X(reduce_scatter, ReduceScatter)           \
  X(all_gather, AllGather)                   \
  X(broadcast, Broadcast)                    \
  X(reduce, Reduce)                          \
  X(create_premul_sum, RedOpCreatePreMulSum) \
  X(destroy_op, RedOpDestroy)

class NcclLibrary {
 public:
  // Loads the library once per process: RINGREDUCE_NCCL_LIBRARY, or libnccl.so.2, or the finder's result.
  // Throws Error with the reason if there is none, or it is too old.
  static const NcclLibrary& get();

  // Finds other places where NCCL may be installed: returns a path, or nothing. Called at most once.
  using Finder = std::string (*)();
  static void set_finder(Finder finder);

  nccl::GetVersion* get_version;
#define RINGREDUCE_MEMBER(name, function) nccl::function* name;
  RINGREDUCE_NCCL_FUNCTIONS(RINGREDUCE_MEMBER)
#undef RINGREDUCE_MEMBER
  // Null before 2.19.
  nccl::CommRegister* enroll;
  nccl::CommDeregister* withdraw;

  // Another function, or null. `name` without nccl.
  void* find_function(const char* name) const;

  int version() const { return version_; }  // 22304 is 2.23.4
  std::string version_in_words() const;

 private:
  NcclLibrary();
  template <class Function>
  void find_function(Function& function, const char* name);

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
};

}  // namespace ringreduce
