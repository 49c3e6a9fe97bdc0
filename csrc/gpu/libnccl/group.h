// A group's NCCL communicator, of which this rank has one end. It does not block: operations that take long
// because of other ranks are polled, so that they can be interrupted.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "gpu/libnccl/library.h"
#include "transport/interface/transport.h"

namespace ringreduce {

class NcclGroup {
 public:
  // Called now and then during long operations, in the waiting thread; may throw.
  using Tick = std::function<void()>;

  // A collective, on the calling thread's current device. Either all ranks fail with Error, or none; it takes
  // at most `timeout`. Later waits for other ranks have the same limit. `min_blocks`, `max_blocks`: thread
  // blocks of its kernels; 0: as NCCL likes.
  NcclGroup(int rank, int world, int min_blocks, int max_blocks, Clock::duration timeout,
            const Exchange& exchange, const Tick& tick);
  // Aborts it, unless it is finished.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // NCCL's functions are called, and their results read, under this lock, by one thread at a time. Throws
  // Error if the group was aborted.
  std::unique_lock<std::timed_mutex> occupy();
  const NcclLibrary& library() const { return nccl_; }
  nccl::Comm comm() const { return comm_; }

  // Checks what a function returned; `what` names it. Throws Error.
  void check(nccl::Result result, const char* what) const;
  // The same for the last call of a group: returns when all of it is on its stream.
  void complete(nccl::Result result, const char* what, const Tick& tick);

  // The failures since then, in words; empty if there were none. From any thread.
  std::string failure();

  // Registers memory that NCCL may use in place, until it is withdrawn or the group ends.
  void enroll(void* memory, std::size_t bytes, const Tick& tick);
  void withdraw(void* memory, const Tick& tick);

  // Ends it properly: all work on streams is finished. If this takes longer than `patience`, NCCL does the
  // rest.
  void finish(Clock::duration patience, const Tick& tick);
  // Ends work on streams that waits for other ranks, and the group. From any thread.
  void abort();

 private:
  void join(int rank, int world, nccl::Config config, const nccl::UniqueId& id, const Exchange& exchange,
            const Tick& tick);
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

// Calls between its construction and its end are launched on the stream as one operation.
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
