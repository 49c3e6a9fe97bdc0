#include "transport/choose.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "transport/addresses.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace ringreduce {
namespace {

struct Card {
  std::uint64_t machine;
  char wanted[8];
};

std::string chosen(const std::string& wanted, bool mpi) {
  const char* set = std::getenv("RINGREDUCE_TRANSPORT");
  const bool by_environment = wanted.empty() && set && *set;
  const std::string name = by_environment ? set : wanted.empty() ? "auto" : wanted;
  if (name == "auto" || name == "shm" || name == "tcp" || (name == "mpi" && mpi)) return name;
  const std::string what = by_environment ? "RINGREDUCE_TRANSPORT" : "transport";
  if (name == "mpi") throw InvalidArgument(what + " mpi is for communicators that ringreduce.init() makes");
  throw InvalidArgument(what + " must be auto, shm, tcp or mpi, not '" + name + "'");
}

}  // namespace

std::unique_ptr<Transport> connect_transport(int rank, int world, const Exchange& exchange,
                                             const std::string& wanted, MpiJob* mpi) {
  const std::string name = chosen(wanted, mpi);
  Card card{this_host().machine, {}};
  std::memcpy(card.wanted, name.data(), std::min(name.size(), sizeof card.wanted));
  const auto blobs = exchange(std::string(reinterpret_cast<const char*>(&card), sizeof card));
  if (static_cast<int>(blobs.size()) != world)
    throw Error("the bootstrap exchange returned a wrong number of blobs");
  bool together = true;
  for (int peer = 0; peer < world; ++peer) {
    Card theirs{};
    if (blobs[peer].size() != sizeof theirs) throw Error("the bootstrap exchange returned a malformed blob");
    std::memcpy(&theirs, blobs[peer].data(), sizeof theirs);
    if (std::memcmp(theirs.wanted, card.wanted, sizeof card.wanted) != 0) {
      throw InvalidArgument("transport must be the same on all ranks: it is '" + name + "' on rank " +
                            std::to_string(rank) + ", '" +
                            std::string(theirs.wanted, strnlen(theirs.wanted, sizeof theirs.wanted)) +
                            "' on rank " + std::to_string(peer));
    }
    together = together && theirs.machine == card.machine;
  }
  if (name == "mpi") return mpi->connect(rank, world, exchange);
  if (name == "tcp" || (name == "auto" && !together)) return TcpTransport::create(rank, world, exchange);
  try {
    return ShmTransport::create(rank, world, exchange);
  } catch (const Failure&) {
    throw;
  } catch (const Error&) {
    // Of one machine, but apart: containers, or processes of several users. All ranks have failed alike.
    if (name == "shm") throw;
    return TcpTransport::create(rank, world, exchange);
  }
}

}  // namespace ringreduce
