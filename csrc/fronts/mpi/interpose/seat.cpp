#include "fronts/mpi/interpose/seat.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "fronts/mpi/interpose/presence.h"
#include "fronts/mpi/interpose/runtime.h"
#include "fronts/mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

// Making a group takes about a millisecond and some memory, which must be worth it: programs also make
// communicators for a single call. A call counts as one, plus one for every bytes_per_credit bytes.
constexpr std::size_t enough_credit = 32;
constexpr std::size_t bytes_per_credit = 64 << 10;

// Groups hold memory and open files, so a process has a limited number at a time.
constexpr int most_groups = 32;
std::atomic<int> groups{0};

// Before the ranks meet, they do not know whether there are more ranks than cores.
bool may_serve(Function function, std::size_t bytes) {
  const bool everything = mode() == Mode::all;
  return Policy(false, everything).serves(function, false, bytes) ||
         Policy(true, everything).serves(function, false, bytes);
}

// Whether a rank returns only after all have entered the call, whatever their blocks.
bool waits_for_all(Function function) {
  using enum Function;
  return function == allreduce || function == reduce_scatter_block || function == allgather ||
         function == alltoall || function == barrier;
}

void say(const std::string& why) {
  write_to_stderr(("ringreduce: " + why + ": collectives are left to MPI\n").c_str());
}

// Reports a problem once per process, as all its groups share it. Other ranks report their own problems.
void say_why(const std::exception& error, int rank) {
  static std::atomic<bool> said{false};
  if (const auto* trouble = dynamic_cast<const Trouble*>(&error)) {
    const bool of_another =
        trouble->outcome == Outcome::other && trouble->culprit >= 0 && trouble->culprit != rank;
    if (trouble->outcome == Outcome::refused || of_another) return;
  }
  if (said.exchange(true)) return;
  say(error.what());
}

}  // namespace

// Does not wait for other ranks.
Seat::Seat(MPI_Comm comm) : comm_(comm) {
  int between_groups = 0;
  PMPI_Comm_test_inter(comm, &between_groups);
  PMPI_Comm_rank(comm, &rank_);
  PMPI_Comm_size(comm, &size_);
  if (!between_groups && size_ > 1) state_ = State::unknown;
}

Decision Seat::earn(Function function, std::size_t bytes) {
  if (may_serve(function, bytes)) credit_ += 1 + bytes / bytes_per_credit;
  const bool enough = credit_ >= enough_credit || mode() == Mode::all;
  return enough && waits_for_all(function) ? Decision::hand_on_and_meet : Decision::hand_on;
}

// A rank that has not shown itself is on another host, has not loaded this library, or has it switched off.
bool Seat::all_present() const {
  const std::vector<int> ranks = world_ranks(comm_, size_);
  if (std::ranges::find(ranks, MPI_UNDEFINED) != ranks.end()) return false;
  const auto absent = std::ranges::find_if_not(ranks, shows_presence);
  if (absent == ranks.end()) return true;
  if (ranks[rank_] == *std::ranges::find_if(ranks, shows_presence) && on_one_host()) {
    say("rank " + std::to_string(*absent) +
        " of MPI_COMM_WORLD has not loaded libringreduce_mpi.so, or has another value of RINGREDUCE_MPI than "
        "rank " +
        std::to_string(ranks[rank_]));
  }
  return false;
}

// Called by all ranks that have loaded this library, after the same call. All reach the same result: a rank
// that fails tells the others in the next exchange, at the latest in those at the end of join().
void Seat::meet() {
  state_ = State::refused;
  CommMeeting meeting(comm_, size_);
  try {
    if (!all_present()) return;
    try {
      join(meeting);
    } catch (const NoMeeting&) {
      throw;
    } catch (const std::exception& error) {
      say_why(error, rank_);
      meeting.give_up();
    }
    state_ = State::connected;
  } catch (const NoMeeting&) {
    close();
  }
}

// A rank may be arbitrarily late, because MPI has no timeouts.
void Seat::join(CommMeeting& meeting) {
  Group::Settings with;
  with.timeout = Group::Duration::max();
  with.poll = drive_progress;
  with.shared_memory = true;
  if (!has_own_name()) throw std::runtime_error("another process has taken this rank's name");
  if (groups >= most_groups) throw Trouble(Outcome::refused, -1, "this process has too many groups");
  group_ = std::make_unique<Group>(rank_, size_, meeting, with);
  ++groups;
  policy_ = Policy(group_->oversubscribed(), meeting.all(mode() == Mode::all));
  if (!meeting.all(threads_allowed())) policy_.serve_no_background();
}

int Seat::code_for(const std::exception& problem) {
  if (code_ != MPI_SUCCESS) return code_;  // a failed group stays failed, and error codes are few
  if (PMPI_Add_error_code(MPI_ERR_OTHER, &code_) != MPI_SUCCESS) return MPI_ERR_OTHER;
  char text[MPI_MAX_ERROR_STRING];
  std::snprintf(text, sizeof text, "ringreduce: %s", problem.what());
  PMPI_Add_error_string(code_, text);
  return code_;
}

// A problem that is not the group's own failure concerns this rank alone, and the others must not wait for
// it.
int Seat::fail(const std::exception& problem) {
  const auto* trouble = dynamic_cast<const Trouble*>(&problem);
  if (!trouble || trouble->outcome == Outcome::other) group_->leave();
  const int code = code_for(problem);
  PMPI_Comm_call_errhandler(comm_, code);
  return code;
}

void Seat::close() {
  state_ = State::refused;
  if (!group_) return;
  try {
    group_->close();
  } catch (const std::exception&) {
    group_->leave();
  }
  group_.reset();
  --groups;
}

}  // namespace ringreduce::mpi
