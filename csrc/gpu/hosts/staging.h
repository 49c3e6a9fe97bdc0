// Collectives of arrays in GPU memory that run on the CPU, through memory on the host: the stream copies a
// slice there and waits, a thread of this object runs the collective once the slice has come, and the stream
// copies the result back. The caller's thread waits for nothing.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/calls/undestroyed.h"
#include "engine/communicator/communicator.h"
#include "engine/planning/planner.h"
#include "gpu/device/memory.h"

namespace ringreduce {

struct Cut;

class Staging {
 public:
  // `group`: runs nothing else.
  explicit Staging(std::unique_ptr<Communicator> group);
  // The stream no longer uses this memory.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The group's number of an algorithm that was added to another one.
  int same_algorithm(int handle, const Planner::Custom& custom);
  // On the current device's stream. The call is one that the group can serve.
  void launch(const Call& call, void* stream);
  // Throws what has failed, unless the group that calls still has a while to find it by itself: it knows
  // what was really called.
  void check();
  // Releases waiting streams, now and later, and ends the group. From any thread.
  void give_up();
  // Leaves the group properly, when everything is over.
  void finish() { group_->close(); }

 private:
  struct Slice;

  std::shared_ptr<Slice> prepare(const Call& call, const Cut& cut, std::size_t number);
  char* room_for(std::uint64_t number, std::size_t bytes);
  void fetch(const Call& call, const std::shared_ptr<Slice>& slice, void* stream);
  void put_back(const Call& call, const Slice& slice, void* stream);
  void work();
  bool has_arrived(std::uint64_t number);
  bool is_given_up();

  const CudaLibrary& cuda_;
  const std::unique_ptr<Communicator> group_;
  DeviceMemory words_;
  std::uint64_t *const arrived_, *const done_;  // the last slice that the host has; and that it is done with
  std::uint64_t launched_ = 0;
  // Temporary memory for slices of even and of odd numbers. The last one is current, streams may use any.
  std::array<std::vector<std::unique_ptr<DeviceMemory>>, 2> rooms_;
  std::map<int, int> algorithms_;

  std::mutex mutex_;  // for what follows
  Undestroyed<std::condition_variable> changed_;
  std::deque<std::shared_ptr<Slice>> slices_;
  bool given_up_ = false;
  std::exception_ptr problem_;
  Clock::time_point failed_;
  std::thread thread_;
};

}  // namespace ringreduce
