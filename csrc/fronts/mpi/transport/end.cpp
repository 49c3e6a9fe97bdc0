// How MpiTransport releases an unreachable peer, the caller's memory after a failed call, and MPI.
#include <sched.h>

#include <algorithm>

#include "fronts/mpi/transport/transport.h"

namespace ringreduce::mpi {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds to_cancel{1000}, to_hand_over{100};

}  // namespace

// --- a peer ---------------------------------------------------------------------------------------------

void MpiTransport::unreachable(int peer, int code) {
  lost_some_ = true;
  end_without_others();
  // Nothing lies between the processes of a host.
  control_.lost(peer, "can no longer be reached (" + error_text(code) + ")",
                members_[peer].host.machine == members_[rank].host.machine);
}

// It does not say for which peer the hellos' receive fails; another request will.
void MpiTransport::failed(std::size_t index, int code) {
  const Purpose purpose = purposes_[index];
  if (purpose.kind == Purpose::Kind::hello) {
    if (requests_[index] == MPI_REQUEST_NULL) listen_for_hello();
    return;
  }
  requests_[index] = MPI_REQUEST_NULL;
  some_finished_ = true;
  if (purpose.kind == Purpose::Kind::sent) {
    sent(purpose);
  } else if (purpose.kind == Purpose::Kind::frame) {
    pool_.release(purpose.buffer);
  } else if (purpose.landing.buffer) {
    pool_.release(purpose.landing.buffer);
  }
  unreachable(purpose.peer, code);
}

// --- the caller's memory ---------------------------------------------------------------------------------

// MPI must finish what it has begun to receive, which depends on the sender.
MpiTransport::Cancelled MpiTransport::cancel(MPI_Request& request, Clock::time_point deadline) {
  MPI_Status status;
  int done = 0, cancelled = 0;
  {
    const Turn turn(in_turn_);
    MPI_Cancel(&request);
  }
  while (true) {
    {
      const Turn turn(in_turn_);
      if (MPI_Test(&request, &done, &status) != MPI_SUCCESS) return Cancelled::yes;
      if (done) {
        MPI_Test_cancelled(&status, &cancelled);
        return cancelled ? Cancelled::yes : Cancelled::came;
      }
    }
    if (Clock::now() > deadline) return Cancelled::no;
    sched_yield();
  }
}

void MpiTransport::withdraw() {
  if (over() || closed_) return;
  // A rank that is told of a death must let MPI end without the dead rank, like those that noticed it.
  const std::optional<Failure> failure = fate().failure();
  if (failure && failure->culprit >= 0) look_after(failure->culprit);
  if (!may_call()) return;
  const auto deadline = Clock::now() + to_cancel;
  for (int peer = 0; peer < world; ++peer) {
    const auto into_callers = [&](const Purpose& purpose) {
      return purpose.kind == Purpose::Kind::bulk && purpose.peer == peer && !purpose.landing.buffer;
    };
    if (std::any_of(purposes_.begin(), purposes_.end(), into_callers)) divert(peer, deadline);
  }
  hand_over(Clock::now() + to_hand_over);
}

// No thread will call MPI for this rank later, so all ranks are told now.
void MpiTransport::answer_latecomers() {
  if (over() || closed_ || !may_call()) return;
  const Turn turn(in_turn_);
  for (int peer = 0; peer < world; ++peer) {
    if (peer != rank && !control_.has_left(peer)) open(peer, true);
  }
}

// MPI reads what it has begun to send from the caller's memory until the peer has it, and no library can stop
// that. Living peers take everything off the wire soon; memory that goes to the dead stays in use.
void MpiTransport::hand_over(Clock::time_point deadline) {
  for (bool waits = true; waits && Clock::now() < deadline;) {
    waits = false;
    for (std::size_t i = 0; i < purposes_.size(); ++i) {
      const Purpose purpose = purposes_[i];
      if (purpose.kind != Purpose::Kind::sent || purpose.buffer || !purpose.frame.is_lent()) continue;
      if (requests_[i] == MPI_REQUEST_NULL || control_.has_left(purpose.peer)) continue;
      int done = 0;
      {
        const Turn turn(in_turn_);
        if (MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 1;
      }
      if (!done) {
        waits = true;
        continue;
      }
      requests_[i] = MPI_REQUEST_NULL;
      some_finished_ = true;
      sent(purpose);
    }
    if (waits) sched_yield();
  }
}

// Cancels everything from this peer, because later receives are matched last.
void MpiTransport::divert(int peer, Clock::time_point deadline) {
  std::vector<std::size_t> again;
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    if (purposes_[i].kind != Purpose::Kind::bulk || purposes_[i].peer != peer) continue;
    if (requests_[i] == MPI_REQUEST_NULL) continue;  // it has arrived, and is about to be noticed
    switch (cancel(requests_[i], deadline)) {
      case Cancelled::yes:
        again.push_back(i);
        break;
      case Cancelled::came: {
        const Purpose purpose = purposes_[i];
        some_finished_ = true;
        frames_.landed(purpose.peer, purpose.header, purpose.landing);
        break;
      }
      case Cancelled::no:
        home_->keep();
    }
  }
  for (const std::size_t i : again) {
    Purpose& purpose = purposes_[i];
    if (!purpose.landing.buffer) {
      purpose.landing = pool_.room(purpose.header.bytes);
    }
    receive_bulk(i);
  }
}

// --- the end ---------------------------------------------------------------------------------------------

// An unreceived message would stay in MPI forever, so ranks that close wait a little for each other.
void MpiTransport::see_off(Lock& lock) {
  constexpr milliseconds to_hear{50};
  const auto start = Clock::now();
  control_.say_bye();
  while (sending() && Clock::now() - start < to_hand_over) progress(lock, milliseconds(1));
  const auto all_have_closed = [&] {
    for (int peer = 0; peer < world; ++peer) {
      if (open_[peer] && !control_.has_left(peer)) return false;
    }
    return true;
  };
  while (!all_have_closed() && Clock::now() - start < to_hear) progress(lock, milliseconds(1));
  if (lost_some_ || sending() || !all_have_closed()) home_->keep();
}

// Memory that MPI does not release in time is kept.
void MpiTransport::let_go() {
  const auto deadline = Clock::now() + to_cancel;
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    const Purpose& purpose = purposes_[i];
    if (purpose.idle && purpose.buffer) pool_.release(purpose.buffer);
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (purpose.kind == Purpose::Kind::sent || cancel(requests_[i], deadline) == Cancelled::no) {
      const Turn turn(in_turn_);
      MPI_Request_free(&requests_[i]);
      continue;
    }
    if (purpose.buffer) pool_.release(purpose.buffer);
    if (purpose.landing.buffer) pool_.release(purpose.landing.buffer);
  }
  requests_.clear();
  purposes_.clear();
  if (copy_) pool_.release(copy_);
  copy_ = nullptr;
}

void MpiTransport::close() {
  if (disowned_) return;
  {
    Lock lock(mutex_);
    if (closed_) return;
    if (!over() && may_call()) {
      control_.let_go_of_callers();
      see_off(lock);
      let_go();
    }
    closed_ = true;
    frames_.messages.forget();
  }
  wake();
}

}  // namespace ringreduce::mpi
