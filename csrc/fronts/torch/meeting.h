// How the ranks of a group meet: through torch's store.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "fronts/shared/group.h"

namespace ringreduce::torch_backend {

class StoreMeeting : public Meeting {
 public:
  StoreMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int world, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(rank), world_(world), timeout_(timeout) {}
  std::vector<Blob> exchange(const Blob& blob) override;
  // Returns when all ranks have read the last exchange. Removes what they have left in the store, so that the
  // next group may use it again.
  void leave(const Group& group);

 private:
  std::string key(int round, int rank) const;
  bool arrives_in_time(const std::string& key, int rank, std::chrono::steady_clock::time_point deadline);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, world_;
  const std::chrono::milliseconds timeout_;
  int rounds_ = 0;
};

// Meets at rank 0, which reports missing ranks; see torch.distributed.monitored_barrier. `number`: how many
// of these the group ran before.
void monitored_barrier(c10d::Store& store, int rank, int world, std::uint64_t number,
                       std::chrono::milliseconds timeout, bool wait_all_ranks);

}  // namespace ringreduce::torch_backend
