// What we know of a communicator: nothing at first, then a group of our own beside it, or that it is not for
// us. It hangs on the communicator as an attribute, which MPI_Comm_dup does not copy and MPI_Comm_free takes
// along.
//
// Whatever decides between serving a call and handing it on must be the same on all ranks, or they would wait
// for each other in different places. So it may depend on: what MPI obliges all ranks to pass alike (the
// function, the op, the root, the bytes that a call moves in all), what they agreed on when the group was
// made, and the calls before, which come in the same order on all ranks.
//
// The group is made after a call of the library's own from which no rank returns before all have come to it:
// by then every rank that has us loaded has shown so, and who has not is known to all others.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <memory>

#include "front/group.h"
#include "mpi/interpose/meeting.h"
#include "mpi/interpose/policy.h"

namespace ringreduce::mpi {

enum class Decision : std::uint8_t { hand_on, hand_on_and_meet, serve };

class Seat {
 public:
  explicit Seat(MPI_Comm comm);

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm comm() const { return comm_; }

  // Whether calls of a function may be ours, or count for what makes the group. Nonblocking ones do not: they
  // must not wait for others.
  bool may_take(Function function, bool in_background) const {
    if (state_ == State::connected) return policy_.serves_some(function, in_background);
    return state_ == State::unknown && !in_background;
  }
  // What becomes of one that moves so many bytes in all; the same on all ranks.
  Decision decide(Function function, bool in_background, std::size_t bytes) {
    if (state_ != State::connected) return earn(function, bytes);
    return policy_.serves(function, in_background, bytes) ? Decision::serve : Decision::hand_on;
  }
  // Makes the group, or finds that there can be none.
  void meet();

  Group& group() { return *group_; }

  // Calls the communicator's error handler, and returns what the call shall return.
  int fail(const std::exception& problem);
  // The error code under which MPI_Error_string knows what went wrong.
  int code_for(const std::exception& problem);

  // Nonblocking calls that are not over: whether there are any, and one more or less.
  bool busy() const { return in_background_calls_ > 0; }
  void began_in_background() { ++in_background_calls_; }
  void ended_in_background() { --in_background_calls_; }

  // Leaves the group once all its calls are over. Everything is handed on from then on.
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
