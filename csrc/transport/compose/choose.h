// Chooses the transport of a group of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/compose/mpi_job.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// `wanted` is "shm", "tcp", "ofi", "mpi", "shm+tcp", "shm+ofi", "shm+mpi", or "auto": shm+ofi if a card
// makes that faster for all ranks, and else shm+tcp.
// Those with "shm+" use shared memory between ranks that can share it, and the other transport between the
// rest; if all ranks can, or none, the result is one of the two alone. Those with mpi need an MPI job that
// contains all ranks.
// Empty: RINGREDUCE_TRANSPORT, or else auto. Collective over the ranks that `exchange` connects. `encrypt`:
// whether sockets use TLS; if not given, RINGREDUCE_TLS decides. `word`: see MeetingReports. Throws
// InvalidArgument if there is no such transport or ranks want different ones, and Error if it cannot connect
// them.
std::unique_ptr<Transport> connect_transport(int rank, int world, const Exchange& exchange,
                                             const std::string& wanted = "",
                                             const std::shared_ptr<MpiJob>& mpi = nullptr,
                                             std::optional<bool> encrypt = {}, std::uint64_t agreement = 0);

}  // namespace ringreduce
