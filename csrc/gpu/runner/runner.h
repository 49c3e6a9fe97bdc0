// Engines for collectives of arrays in GPU memory: kernels that wait for each other, NCCL, or the CPU. Each
// rank has its own, for one GPU. The group decides which calls there are, and how it fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/planning/call.h"
#include "engine/planning/planner.h"
#include "gpu/device/library.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// Called now and then during long operations, in the waiting thread; may throw.
using Tick = std::function<void()>;

class Messenger;

struct Launch {
  void* stream = nullptr;
  bool captured = false;       // into a graph, which may run it at any time and repeatedly
  std::uint64_t contract = 0;  // stands for this call and all before it
};

class Runner {
 public:
  Runner(int rank, int world, int device)
      : cuda_(CudaLibrary::get()), rank_(rank), world_(world), device_(device) {}
  // Launched work has ended, or was given up.
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Its work, in words for errors.
  virtual const char* what() const = 0;
  virtual std::size_t footprint() const { return 0; }  // bytes of device memory

  // Throws InvalidArgument for a call that it cannot serve.
  virtual const Plan& plan(Planner& planner, const Call& call, const Launch& launch) = 0;
  // Launches the last planned call on the stream, after everything launched before. The call's arrays are on
  // the device, and in use until the stream has run it. On the current device.
  virtual void launch(const Call& call, const Plan& plan, const Launch& launch) = 0;
  // The event of the last call, except in graphs, or null. Work that must not overtake the call waits for it.
  void* last() const { return last_; }

  // The numbers of calls that the GPU has begun and ended, as last reported, among those that wait for other
  // ranks there.
  virtual std::uint64_t begun() { return 0; }
  virtual std::uint64_t ended() { return 0; }
  // Whether kernels of the last of these combined directly what lies in all ranks' arrays.
  virtual bool was_direct() const { return false; }
  virtual bool is_idle() { return is_last_over() && begun() == ended(); }
  // Carries messages between two ranks, on streams; null if nothing does.
  virtual Messenger* messenger() { return nullptr; }
  // The message that the GPU waits in, if that is no collective.
  virtual std::optional<Transfer> waiting_message() { return std::nullopt; }
  // Throws known failures.
  virtual void check() {}
  // Whether some rank is known to have made a different call. If messages show which rank, check() throws
  // instead.
  virtual bool has_disagreed() { return false; }
  // Ends what waits for other ranks, now and later.
  virtual void give_up() {}
  // Leaves the other ranks properly, when idle.
  virtual void finish(Clock::duration /*patience*/, const Tick& /*tick*/) {}

  // Memory that calls may use in place, as long on all ranks: a collective. On the current device.
  virtual void register_memory(void* /*memory*/, std::size_t /*bytes*/, const Exchange& /*exchange*/) {}
  virtual void deregister_memory(void* /*memory*/) {}

 protected:
  // Reads what the GPU writes.
  static std::uint64_t heard(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
  void record_last(void* event, void* stream) {
    CudaLibrary::check(cuda_.record(event, stream));
    last_ = event;
  }
  bool is_last_over() const {
    const OnDevice there(cuda_, device_);
    int over = 1;
    if (void* const last = last_) CudaLibrary::check(cuda_.is_over(&over, last));
    return over != 0;
  }

  const CudaLibrary& cuda_;
  const int rank_, world_, device_;

 private:
  std::atomic<void*> last_{nullptr};
};

}  // namespace ringreduce
