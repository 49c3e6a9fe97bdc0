// One rank's end of a communicator: what programs hold as ncclComm_t. Served by this library where its
// kernels reach all ranks' GPUs, else by the real NCCL.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "engine/communicator.h"
#include "nccl/errors.h"
#include "nccl/meeting.h"
#include "transport/nccl/library.h"

namespace ringreduce::nccl_api {

class Member {
 public:
  Member(int rank, int world, int device) : rank(rank), world(world), device(device) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Throws Refusal where it is null, or no communicator of this library's, or was destroyed.
  static Member& of(nccl::Comm handle);
  // Makes a handle of it. What a handle points to stays, so that one that is used too late is known.
  static nccl::Comm hand_out(std::unique_ptr<Member> member);

  const int rank, world, device;

  // A collective over all ranks that have the invitation. `config`, which may be null, is for NCCL.
  void join(const Invitation& invitation, nccl::Config* config);
  // Its part of what a split gives; null: none.
  std::unique_ptr<Member> split(int color, int key, nccl::Config* config);
  // Of NCCL's.
  static std::unique_ptr<Member> adopt(nccl::Comm real, int device);

  bool is_real() const { return real_ != nullptr; }
  // NCCL's own handle, or null where this library serves. Throws Refusal where it was finalized.
  nccl::Comm real() const;
  // Calls step(communicator), whoever ends it meanwhile.
  template <class Step>
  void use(Step step) {
    const std::shared_lock lock(in_use_);
    check_usable();
    step(*own_);
  }

  // What has gone wrong since, which then stands as the last error.
  nccl::Result async_error();
  void finalize();
  void destroy();
  void abort();

  // Operators of the form "factor times".
  struct Factor {
    DType dtype;
    double value;
    const void* in_device_memory;  // read when it is used; null: known
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
  void join_by_nccl(Seat& seat, const std::string& why, nccl::Config* config);
  void serve(std::unique_ptr<Communicator> communicator);
  void end();

  static constexpr std::uint64_t known = 0x72696e6772656475;
  std::uint64_t mark_ = 0;  // `known` in what was handed out
  std::atomic<State> state_{State::unmet};
  std::shared_mutex in_use_;
  std::unique_ptr<Communicator> own_;
  nccl::Comm real_ = nullptr;
  mutable std::mutex factors_mutex_;
  std::map<unsigned, Factor> factors_;
  unsigned next_factor_ = nccl::avg + 1;
};

}  // namespace ringreduce::nccl_api
