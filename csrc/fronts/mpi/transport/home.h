// A duplicate of a user's communicator, in which all our communicators between its ranks live. Tags tell
// their messages apart, so any number of them costs MPI one communicator, and none is made when ranks split
// or some have died. It is kept for the next time, and freed with the user's.
#pragma once

#include <mpi.h>

#include <memory>
#include <mutex>

#include "transport/compose/mpi_job.h"

namespace ringreduce::mpi {

// The tags of one transport.
struct Tags {
  int hello = 0;   // says that frames will follow
  int frames = 0;  // whole frames, or the headers of large ones
  int bulk = 0;    // the data of large frames
};

class Home : public MpiJob {
 public:
  static std::shared_ptr<Home> of(MPI_Comm parent, Clock::duration timeout);
  Home(MPI_Comm comm, int rank, int size, Clock::duration timeout);
  ~Home() override;

  MPI_Comm comm() const { return comm_; }
  std::vector<std::string> exchange(const std::string& blob) override;
  std::unique_ptr<RemoteTransport> connect(int rank, int world, const Exchange& exchange) override;

  // A number that no other transport of these ranks has, from the rank that leads the new group. Throws Error
  // when there are none left. Numbers are not reused, because the last messages under one may still be on
  // their way.
  int new_number();
  Tags tags_of(int number) const;
  // Messages may still be in flight, so the communicator's identity must not be reused.
  void keep() { kept_ = true; }

 private:
  const MPI_Comm comm_;
  Clock::duration timeout_;
  int numbers_ = 0;  // per rank
  std::mutex mutex_;
  int next_ = 0;
  bool kept_ = false;
};

}  // namespace ringreduce::mpi
