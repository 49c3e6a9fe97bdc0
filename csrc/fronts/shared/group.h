// The library as separately compiled fronts see it: a communicator behind an interface that does not depend
// on the C++ library's string ABI (torch had the old one until 2.6), with one type for all failures. Other
// compilers may compile fronts later.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/options.h"
#include "engine/planning/call.h"

namespace ringreduce {

class Communicator;

enum class Outcome : std::uint8_t {
  refused,  // an argument that cannot be used; the group stays usable
  failed,   // the group, through a fault of some rank
  timeout,  // the same, because a rank did not come
  closed,
  interrupted,  // through the check of set_interrupt_check()
  other,
};

// A failure, and the rank at fault (-1: none in particular).
class Trouble : public std::exception {
 public:
  Trouble(Outcome outcome, int culprit, const char* text);
  const char* what() const noexcept override { return text_->data(); }

  Outcome outcome;
  int culprit;

 private:
  std::shared_ptr<const std::vector<char>> text_;
};

// How ranks find each other: every rank passes a blob and gets all blobs, in rank order.
class Meeting {
 public:
  using Blob = std::vector<char>;
  virtual ~Meeting() = default;
  virtual std::vector<Blob> exchange(const Blob& blob) = 0;
};

// Called once, in the thread that ends an asynchronous operation, with its outcome. `problem`, if any, is a
// Trouble. `source` is the rank that a message came from, otherwise -1. Must not throw.
using Completion = std::function<void(const std::exception_ptr& problem, int source)>;

// A rank's end of a group of processes. Thread-safe. All failures throw Trouble.
class Group {
 public:
  using Duration = std::chrono::steady_clock::duration;
  struct Settings {
    Duration timeout{};
    std::optional<bool> reproducible;  // none: RINGREDUCE_REPRODUCIBLE decides
    // Called a few thousand times a second in threads that wait in run(), instead of the check for
    // interrupts. Lets the caller make progress with something else. Must not throw.
    void (*poll)() = nullptr;
    GpuOptions gpu;
    bool shared_memory = false;  // required: no other transport takes its place
    std::vector<int> members;    // the ranks' names in the job; empty: their numbers here
  };
  Group(int rank, int world, Meeting& meeting, const Settings& settings);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void run(const Call& call);
  void run(Steps& steps);
  void submit(std::unique_ptr<Steps> steps, Completion completion);
  // A call with arrays of a GPU, launched on a stream of that GPU: see DeviceCalls.
  void enqueue(const Call& call, void* stream);
  // Meets on the GPU that holds this rank's arrays: a collective. Then kernels or NCCL may carry messages,
  // too; whether they do is the same on all ranks, and exchange() launches them: see DeviceCalls.
  void prepare(int device);
  bool carries_messages() const;
  void register_memory(int device, void* memory, std::size_t bytes);
  void deregister_memory(int device, void* memory);
  void exchange(int device, const std::vector<Transfer>& transfers, void* stream);
  void submit(const Transfer& transfer, Arrays arrays, Completion completion);

  // Whether this thread is in a collective of the group, further up its stack: a signal handler runs.
  bool in_a_call() const;

  // Whether some rank is known to have ended, or to have left.
  bool lacks_a_rank() const;

  // Whether there are more ranks than cores; the same on all ranks.
  bool oversubscribed() const;

  // The rank that has begun the fewest collectives, if fewer than this rank; else -1.
  int latest() const;
  // That rank and this rank's latest collective in words, which end with a zero byte.
  std::vector<char> latest_call(int late) const;

  // Waits for running calls, then leaves.
  void close();
  // Leaves at once: running calls end here with `closed`, and elsewhere with `peer_lost`.
  void leave();

 private:
  const std::unique_ptr<Communicator> communicator_;
};

// Blocking calls of a communicator that Python has made and gives by its number. It lives at least until they
// end. All failures throw Trouble.
void run(std::int64_t communicator, const Call& call);
void run(std::int64_t communicator, const Transfer& transfer);
void swap(std::int64_t communicator, const Transfer& send, const Transfer& receive);

// The log, at level info: whether its lines are read, and a way to write one.
bool says();
void say(int rank, const char* text);
// Writes to stderr in one piece, if the process was started with one.
void write_to_stderr(const char* text);

// Memory that ranks of one host access in place, so that collectives need no staging copy. 64-byte aligned,
// zeroed. Throws std::bad_alloc.
void* allocate_shared(std::size_t bytes);
void free_shared(void* memory);

// Memory from a cache, for programs that allocate and free often: on a page boundary, not zeroed. Peers reach
// it from the beginning if it is for communication, and otherwise once collectives have used it repeatedly.
// Returns null if there is no memory left. free_block returns false if `memory` is not the start of a block.
void* allocate_block(std::size_t bytes, bool for_communication);
bool free_block(void* memory);

// Called now and then during long waits, in the waiting thread; returning true interrupts the wait. Returns
// the previous check, or null.
using InterruptCheck = bool (*)();
InterruptCheck set_interrupt_check(InterruptCheck check);

}  // namespace ringreduce
