// The MPI library as the engine sees it. The engine is compiled without MPI; a shared library that is built
// for the installed MPI (csrc/fronts/mpi/transport) implements this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/remote/remote.h"

namespace ringreduce {

// The ranks of an MPI communicator.
class MpiJob : public std::enable_shared_from_this<MpiJob> {
 public:
  MpiJob(int rank, int size) : rank(rank), size(size) {}
  virtual ~MpiJob() = default;
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  const int rank;
  const int size;

  // Exchanges through MPI, so the ranks need nothing else to meet. Throws Failure after the timeout.
  virtual std::vector<std::string> exchange(const std::string& blob) = 0;
  // A transport between ranks of this job that `exchange` connects. Exchanges twice.
  virtual std::unique_ptr<RemoteTransport> connect(int rank, int world, const Exchange& exchange) = 0;
};

// Collective over the communicator's ranks; initialises MPI if needed. `plugin` is the shared library's path,
// `communicator` the address of an MPI_Comm (null: all ranks of the job), `library` the result of
// MPI_Get_library_version in the communicator's library, or "". Throws InvalidArgument if they do not match,
// Failure after the timeout.
std::shared_ptr<MpiJob> join_mpi(const std::string& plugin, const void* communicator,
                                 const std::string& library, Clock::duration timeout);

// The shared library exports it as "ringreduce_join_mpi".
using JoinMpi = std::shared_ptr<MpiJob>(const void* communicator, const std::string& library,
                                        Clock::duration timeout);

}  // namespace ringreduce
