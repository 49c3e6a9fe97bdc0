// One rank's end of a communicator, which programs hold as ncclComm_t. This library serves it if its kernels
// reach all ranks' GPUs; otherwise the installed NCCL does or, without one, this library through the CPU.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "engine/communicator/communicator.h"
#include "fronts/nccl/errors.h"
#include "fronts/nccl/meeting.h"
#include "gpu/libnccl/library.h"

namespace ringreduce::nccl_api {

class Member {
 public:
  Member(int rank, int world, int device) : rank(rank), world(world), device(device) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Throws Refusal if it is null, was destroyed, or is not a communicator of this library.
  static Member& of(nccl::Comm handle);
  // Makes a handle of it. The memory behind a handle is kept, so that late uses are recognised.
  static nccl::Comm hand_out(std::unique_ptr<Member> member);

  const int rank, world, device;

  // A collective over all ranks that have the invitation. `config`, which may be null, is passed to NCCL.
  void join(const Invitation& invitation, nccl::Config* config);
  // This rank's part of a split; null: none.
  std::unique_ptr<Member> split(int color, int key, nccl::Config* config);
  // Adopts a communicator of NCCL.
  static std::unique_ptr<Member> adopt(nccl::Comm real, int device);

  bool is_real() const { return real_ != nullptr; }
  // NCCL's own handle, or null if this library serves the communicator. Throws Refusal if it was finalized.
  nccl::Comm real() const;
  // Calls step(communicator), even if another thread ends the communicator during the call.
  template <class Step>
  void use(Step step) {
    const std::shared_lock lock(in_use_);
    check_usable();
    step(*own_);
  }

  // The failure since then, which becomes the last error.
  nccl::Result async_error();
  void finalize();
  void destroy();
  void abort();

  // Operators that multiply by a factor first.
  struct Factor {
    DType dtype;
    double value;
    const void* in_device_memory;  // read at each use; null: the value is known
  };
  nccl::ReduceOp add(const Factor& factor);
  Factor factor(nccl::ReduceOp op) const;
  void remove(nccl::ReduceOp op);

  // "rank 1 of 4: "
  std::string name() const;

 private:
  enum class State : int { unmet, joining, ready, finalized, ended };

  void check_usable() const;
  void check_met(const std::string& whose) const;
  void meet(const Invitation& invitation, nccl::Config* config);
  void join_by_nccl(Seat& seat, nccl::UniqueId id, nccl::Config* config);
  void serve(std::unique_ptr<Communicator> communicator);
  void end();

  static constexpr std::uint64_t known = 0x72696e6772656475;
  std::uint64_t mark_ = 0;  // `known` in valid handles
  std::atomic<State> state_{State::unmet};
  std::shared_mutex in_use_;
  std::unique_ptr<Communicator> own_;
  nccl::Comm real_ = nullptr;
  mutable std::mutex factors_mutex_;
  std::map<unsigned, Factor> factors_;
  unsigned next_factor_ = nccl::avg + 1;
};

}  // namespace ringreduce::nccl_api
