// The MPI library as the engine sees it, which is compiled without one: a shared library that is built for
// the MPI that is there (csrc/mpi/transport) brings this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/remote/remote.h"

namespace ringreduce {

// Ranks that MPI has brought together: those of one of its communicators.
class MpiJob : public std::enable_shared_from_this<MpiJob> {
 public:
  MpiJob(int rank, int size) : rank(rank), size(size) {}
  virtual ~MpiJob() = default;
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  const int rank;
  const int size;

  // By means of MPI, so that nothing else is needed for them to meet. Throws Failure when the time is up.
  virtual std::vector<std::string> exchange(const std::string& blob) = 0;
  // A transport between ranks that `exchange` connects, all of this job. Exchanges twice.
  virtual std::unique_ptr<RemoteTransport> connect(int rank, int world, const Exchange& exchange) = 0;
};

// Collective over the communicator's ranks; starts MPI where nobody has. `plugin` is the shared library's
// path, `communicator` an MPI_Comm's address (null: all ranks of the job), `library` what
// MPI_Get_library_version says where that comes from, or "". Throws InvalidArgument where they do not fit
// together, Failure when the time is up.
std::shared_ptr<MpiJob> join_mpi(const std::string& plugin, const void* communicator,
                                 const std::string& library, Clock::duration timeout);

// What the shared library has, under the name "ringreduce_join_mpi".
using JoinMpi = std::shared_ptr<MpiJob>(const void* communicator, const std::string& library,
                                        Clock::duration timeout);

}  // namespace ringreduce
