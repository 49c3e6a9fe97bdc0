// libnccl, loaded at run time: so one build serves machines with and without it.
#pragma once

#include <string>

#include "transport/nccl/entry_points.h"

namespace ringreduce {

class NcclLibrary {
 public:
  // Loads it once for the process: RINGREDUCE_NCCL_LIBRARY, or else libnccl.so.2, or else what the finder
  // finds. Throws Error, which says why there is none, or that it is too old.
  static const NcclLibrary& get();

  // Who knows where NCCL may be installed besides: returns a path, or nothing. Called once, if at all.
  using Finder = std::string (*)();
  static void set_finder(Finder finder);

  nccl::GetVersion* get_version;
  nccl::GetErrorString* get_error_string;
  nccl::GetLastError* get_last_error;
  nccl::GetUniqueId* get_unique_id;
  nccl::CommInitRankConfig* init;
  nccl::CommGetAsyncError* get_async_error;
  nccl::CommFinalize* finalize;
  nccl::CommDestroy* destroy;
  nccl::CommAbort* abort;
  nccl::GroupStart* group_start;
  nccl::GroupEnd* group_end;
  nccl::Send* send;
  nccl::Recv* recv;
  nccl::AllReduce* all_reduce;
  nccl::ReduceScatter* reduce_scatter;
  nccl::AllGather* all_gather;
  nccl::Broadcast* broadcast;
  nccl::Reduce* reduce;
  nccl::RedOpCreatePreMulSum* create_premul_sum;
  nccl::RedOpDestroy* destroy_op;
  // Null before 2.19.
  nccl::CommRegister* enroll;
  nccl::CommDeregister* withdraw;

  int version() const { return version_; }  // 22304 is 2.23.4
  std::string version_in_words() const;

 private:
  NcclLibrary();
  void* find_function(const char* name) const;
  template <class Function>
  void find_function(Function& function, const char* name);

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
};

}  // namespace ringreduce
