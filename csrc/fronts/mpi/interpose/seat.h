// The interposer's data about a communicator: nothing at first, then a group beside it, or that it cannot be
// served. It is an attribute of the communicator, which MPI_Comm_dup does not copy and MPI_Comm_free deletes.
//
// The choice between serving a call and handing it on must be the same on all ranks, or they would wait for
// each other in different places. It may depend only on what MPI requires to be the same on all ranks (the
// function, the op, the root, the total bytes of a call), what they agreed on when the group was made, and
// the earlier calls, which come in the same order on all ranks.
//
// The group is made after a call of the library that no rank leaves before all have entered it. By then every
// rank that has loaded the interposer has shown so, and all others know which have not.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>

#include "fronts/mpi/interpose/meeting.h"
#include "fronts/mpi/interpose/policy.h"
#include "fronts/shared/group.h"

namespace ringreduce::mpi {

enum class Decision : std::uint8_t { hand_on, hand_on_and_meet, serve };

class Seat {
 public:
  explicit Seat(MPI_Comm comm);

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return comm_; }

  // Whether calls of a function may be served, or count towards making the group. Nonblocking ones do not
  // count: they must not wait for others.
  bool may_take(Function function, bool in_background) const {
    if (state_ == State::connected) return policy_.serves_some(function, in_background);
    return state_ == State::unknown && !in_background;
  }
  // Decides on a call that moves this many bytes in total; the same on all ranks.
  Decision decide(Function function, bool in_background, std::size_t bytes) {
    if (state_ != State::connected) return earn(function, bytes);
    return policy_.serves(function, in_background, bytes) ? Decision::serve : Decision::hand_on;
  }
  // Makes the group, or finds that it cannot be made.
  void meet();

  Group& group() { return *group_; }

  // Calls the communicator's error handler, and returns the call's result.
  int fail(const std::exception& problem);
  // The error code for which MPI_Error_string returns this problem.
  int code_for(const std::exception& problem);

  // Running nonblocking calls: whether there are any, and one more or fewer.
  bool busy() const { return in_background_calls_ > 0; }
  void began_in_background() { ++in_background_calls_; }
  void ended_in_background() { --in_background_calls_; }

  // Leaves the group after its last call. Everything is handed on from then on.
  void close();

 private:
  enum class State : std::uint8_t { unknown, refused, connected };

  Decision earn(Function function, std::size_t bytes);
  bool all_present() const;
  void join(CommMeeting& meeting);

  const MPI_Comm comm_;
  State state_ = State::refused;
  int rank_ = 0;
  int size_ = 1;
  std::size_t credit_ = 0;
  Policy policy_;
  std::unique_ptr<Group> group_;
  std::atomic<int> in_background_calls_{0};
  int code_ = MPI_SUCCESS;
};

}  // namespace ringreduce::mpi
