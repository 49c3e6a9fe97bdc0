// Which transport serves a group of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/compose/mpi_job.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// "shm"; "tcp"; "mpi"; "shm+tcp" and "shm+mpi", which are shared memory between those ranks that can share
// it, and the other between the rest, so that the transport is one of the two alone where all ranks can, or
// none; or "auto", which is shm+tcp. Those with mpi need a job of MPI's, of which all ranks are. Empty: what
// RINGREDUCE_TRANSPORT says, or else auto. Collective over the ranks that `exchange` connects. `encrypt`:
// what goes over sockets, by TLS; not given: as RINGREDUCE_TLS says. `word`: see Told. Throws InvalidArgument
// if there is no such transport, or if ranks want different ones; Error where it cannot connect them.
std::unique_ptr<Transport> connect_transport(int rank, int world, const Exchange& exchange,
                                             const std::string& wanted = "",
                                             const std::shared_ptr<MpiJob>& mpi = nullptr,
                                             std::optional<bool> encrypt = {}, std::uint64_t word = 0);

}  // namespace ringreduce
