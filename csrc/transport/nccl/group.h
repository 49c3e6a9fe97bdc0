// A group's communicator of NCCL's, of which this rank has one end. It does not block: what takes time,
// because of other ranks, is looked at now and then, so that it can be broken off.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "transport/interface/transport.h"
#include "transport/nccl/library.h"

namespace ringreduce {

class NcclGroup {
 public:
  // Called now and then where something takes long, in the thread that waits; may throw.
  using Tick = std::function<void()>;

  // A collective, on the calling thread's current device. All ranks fail with Error, or none; it takes
  // `timeout` at most. Longer than that no other rank is waited for later, either.
  NcclGroup(int rank, int world, Clock::duration timeout, const Exchange& exchange, const Tick& tick);
  // Aborted, unless it is finished.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // NCCL's functions are called, and their results looked at, under this lock: by one thread at a time.
  // Throws Error where the group is aborted.
  std::unique_lock<std::timed_mutex> occupy();
  const NcclLibrary& library() const { return nccl_; }
  nccl::Comm comm() const { return comm_; }

  // What a function has returned, `what` in words. Throws Error.
  void check(nccl::Result result, const char* what) const;
  // The same, of the last of a group: returns when all of it is on its stream.
  void complete(nccl::Result result, const char* what, const Tick& tick);

  // What has gone wrong since, in words, or nothing. From any thread.
  std::string failure();

  // Memory that NCCL may use in place, until it is withdrawn or the group ends.
  void enroll(void* memory, std::size_t bytes, const Tick& tick);
  void withdraw(void* memory, const Tick& tick);

  // Ends it as it should: everything put on streams is over. Where this takes longer than `patience`, it is
  // left to NCCL.
  void finish(Clock::duration patience, const Tick& tick);
  // Ends what waits for other ranks on streams, and the group. From any thread.
  void abort();

 private:
  void join(int rank, int world, const nccl::UniqueId& id, const Exchange& exchange, const Tick& tick);
  void complete(nccl::Result result, const char* what, const Tick& tick, Clock::duration timeout);
  nccl::Result state() const;
  std::string in_words(nccl::Result result, const char* what) const;

  const NcclLibrary& nccl_;
  const Clock::duration timeout_;
  nccl::Comm comm_ = nullptr;
  std::timed_mutex busy_;
  std::atomic<bool> aborted_{false};
  std::map<void*, void*> enrolled_;  // handles, by address
};

// Calls between its beginning and its end go on the stream as one operation.
class NcclTogether {
 public:
  explicit NcclTogether(NcclGroup& group);
  ~NcclTogether();
  NcclTogether(const NcclTogether&) = delete;
  NcclTogether& operator=(const NcclTogether&) = delete;
  void end(const char* what, const NcclGroup::Tick& tick);

 private:
  NcclGroup& group_;
  bool open_ = true;
};

}  // namespace ringreduce
