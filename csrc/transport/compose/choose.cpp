#include "transport/compose/choose.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>

#include "transport/compose/hybrid.h"
#include "transport/interface/environment.h"
#include "transport/interface/exchange.h"
#include "transport/interface/log.h"
#include "transport/memory/shm.h"
#include "transport/ofi/hardware.h"
#include "transport/ofi/ofi.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/secret.h"
#include "transport/tcp/tcp.h"

namespace ringreduce {
namespace {

// One for preferences, two for the transport inside hosts, one for its outcome; then those for the one
// between hosts.
constexpr int exchanges_before = 4;

struct Preference {
  std::uint64_t host, agreement, group;
  char wanted[8];
  std::uint64_t may_use_fabric;  // for auto: whether its host has a card
};

// What a rank knows of its group before it connects.
struct Meeting {
  int rank, world;
  const Exchange& exchange;
  std::string name;
  std::vector<std::uint64_t> keys;  // equal for ranks that may share memory
  std::string no_fabric;            // why auto need not look for one
};

constexpr std::string_view names[] = {"auto", "shm", "tcp", "shm+tcp", "ofi", "shm+ofi", "mpi", "shm+mpi"};

bool needs_job(const std::string& name) {
  return name == "mpi" || name == "shm+mpi";
}

bool is_for_fabrics(const std::string& name) {
  return name == "ofi" || name == "shm+ofi";
}

bool takes_two(const std::string& name) {
  return name == "auto" || name.starts_with("shm+");
}

int exchanges_across(const std::string& name) {
  return is_for_fabrics(name) || name == "auto" ? OfiTransport::exchanges : 2;
}

std::string chosen(const std::string& wanted, bool has_job) {
  const std::string set = environment("RINGREDUCE_TRANSPORT");
  const bool by_environment = wanted.empty() && !set.empty();
  const std::string name = by_environment ? set : wanted.empty() ? "auto" : wanted;
  const std::string what = by_environment ? "RINGREDUCE_TRANSPORT" : "transport";
  if (std::find(std::begin(names), std::end(names), name) == std::end(names)) {
    std::string known(names[0]);
    for (std::size_t i = 1; i < std::size(names); ++i) {
      known.append(i + 1 < std::size(names) ? ", " : " or ").append(names[i]);
    }
    throw InvalidArgument(what + " must be " + known + ", not '" + name + "'");
  }
  if (has_job || !needs_job(name)) return name;
  throw InvalidArgument(what + " " + name + " is only for communicators that ringreduce.init() creates");
}

// Processes of one machine with different rooms, such as those of two containers, cannot open each other's
// memory.
std::string room() {
  std::string text = std::to_string(geteuid());
  std::error_code hidden;
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/user"})
    text += std::filesystem::read_symlink(space, hidden).string();
  return text;
}

// Ranks with different keys do not try to share memory. Ranks with equal keys find out whether they can.
std::uint64_t host_key() {
  const std::string label = environment("RINGREDUCE_HOST");
  const Digest digest = sha256(label + std::to_string(this_host().machine) + room());
  std::uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof key);
  return key;
}

// Why auto finds no fabric for this rank, as far as can be known without libfabric.
std::string why_no_fabric(std::optional<bool> encrypt) {
  if (TcpTransport::encrypts(encrypt)) return "no fabric encrypts them";
  return ofi::why_no_card(ofi::cards());
}

// Checks that all ranks ask for the same transport, and learns which may share a host.
std::vector<Preference> exchange_preferences(int rank, int world, const Exchange& exchange,
                                             const std::string& wanted, std::uint64_t agreement,
                                             bool may_use_fabric) {
  Preference own{host_key(), agreement, random_number(), {}, may_use_fabric};
  std::memcpy(own.wanted, wanted.data(), std::min(wanted.size(), sizeof own.wanted));
  int other = 0;
  auto all = exchange_values(exchange, world, own);
  for (const Preference& theirs : all) {
    if (std::memcmp(theirs.wanted, own.wanted, sizeof own.wanted) != 0) {
      throw InvalidArgument("transport must be the same on all ranks: it is '" + wanted + "' on rank " +
                            std::to_string(rank) + ", '" +
                            std::string(theirs.wanted, strnlen(theirs.wanted, sizeof theirs.wanted)) +
                            "' on rank " + std::to_string(other));
    }
    ++other;
  }
  return all;
}

// Connects this rank to the ranks that share its host, if there are any and they can share memory. Either all
// of them get the transport, or none. Two exchanges.
std::unique_ptr<ShmTransport> connect_inside(int rank, const std::vector<int>& members,
                                             const Exchange& exchange, bool must) {
  const Exchange among_members = [&](const std::string& blob) {
    const auto all = exchange(blob);
    std::vector<std::string> theirs;
    for (int member : members) theirs.push_back(all[member]);
    return theirs;
  };
  if (members.size() < 2 && !must) {
    exchange("");
    exchange("");
    return nullptr;
  }
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  try {
    return ShmTransport::create(static_cast<int>(place), static_cast<int>(members.size()), among_members,
                                members);
  } catch (const Failure&) {
    throw;
  } catch (const Error&) {
    if (must) throw;
    return nullptr;  // on one machine, but separate: containers, or processes of several users
  }
}

// auto: a fabric if all ranks find the same one that is faster than sockets. OfiTransport::exchanges.
std::unique_ptr<RemoteTransport> connect_by_the_fastest(const Meeting& meeting, const ofi::Wish& wish,
                                                        std::optional<bool> encrypt) {
  const auto& [rank, world, exchange, name, keys, no_fabric] = meeting;
  std::string why_not = no_fabric;
  if (why_not.empty()) {
    auto over_fabric = OfiTransport::create_if_faster(rank, world, exchange, wish, why_not);
    if (over_fabric) return over_fabric;
  } else {
    exchange("");
  }
  auto over_sockets = TcpTransport::create(rank, world, exchange, encrypt);
  over_sockets->fabric = "messages go through no fabric, because " + why_not;
  return over_sockets;
}

// exchanges_across().
std::unique_ptr<RemoteTransport> connect_across(const Meeting& meeting, MpiJob* mpi,
                                                std::optional<bool> encrypt) {
  const auto& [rank, world, exchange, name, keys, no_fabric] = meeting;
  if (needs_job(name)) return mpi->connect(rank, world, exchange);
  if (!is_for_fabrics(name) && name != "auto") return TcpTransport::create(rank, world, exchange, encrypt);
  ofi::Wish wish = OfiTransport::wish_by_environment();
  wish.place = static_cast<int>(std::count(keys.begin(), keys.begin() + rank, keys[rank]));
  wish.ranks = static_cast<int>(std::count(keys.begin(), keys.end(), keys[rank]));
  if (name == "auto") return connect_by_the_fastest(meeting, wish, encrypt);
  return OfiTransport::create(rank, world, exchange, wish);
}

std::unique_ptr<Transport> connected(const Meeting& meeting, const std::shared_ptr<MpiJob>& mpi,
                                     std::optional<bool> encrypt) {
  const auto& [rank, world, exchange, name, keys, no_fabric] = meeting;
  if (name == "mpi") return mpi->connect(rank, world, exchange);
  const bool must_share = name == "shm" || world == 1;
  std::vector<int> members;
  for (int r = 0; r < world; ++r) {
    if (r == rank || must_share || (takes_two(name) && keys[r] == keys[rank])) members.push_back(r);
  }
  auto inside = connect_inside(rank, members, exchange, must_share);

  std::vector<int> hosts(static_cast<std::size_t>(world));
  const auto shares = exchange(inside ? "1" : "0");
  std::map<std::uint64_t, int> first;
  for (int r = 0; r < world; ++r) {
    hosts[r] = shares[r] == "1" ? first.emplace(must_share ? 0 : keys[r], r).first->second : r;
  }
  const auto alike = [&](int host) { return host == hosts[0]; };
  if (inside && std::all_of(hosts.begin(), hosts.end(), alike)) {
    for (int i = 0; i < exchanges_across(name); ++i) exchange("");
    return inside;
  }
  auto across = connect_across(meeting, mpi.get(), encrypt);
  if (!std::count(shares.begin(), shares.end(), "1")) return across;
  // The caller of among() passes on what the ranks told each other.
  const auto connect_again = [name = name, mpi, encrypt](int new_rank, int new_world,
                                                         const Exchange& new_exchange) {
    return connect_transport(new_rank, new_world, new_exchange, name, mpi, encrypt);
  };
  // A rank that is alone on its host still has a transport inside it.
  const Exchange alone = [](const std::string& blob) { return std::vector<std::string>{blob}; };
  if (!inside) inside = ShmTransport::create(0, 1, alone, {rank});
  return std::make_unique<HybridTransport>(std::move(inside), std::move(across), std::move(hosts),
                                           connect_again, exchanges_before + exchanges_across(name));
}

}  // namespace

std::unique_ptr<Transport> connect_transport(int rank, int world, const Exchange& exchange,
                                             const std::string& wanted, const std::shared_ptr<MpiJob>& mpi,
                                             std::optional<bool> encrypt, std::uint64_t agreement) {
  log::follow_environment();
  const std::string name = chosen(wanted, mpi != nullptr);
  if ((needs_job(name) || is_for_fabrics(name)) && TcpTransport::encrypts(encrypt)) {
    throw InvalidArgument("transport " + name + " cannot encrypt its messages, because they go through " +
                          (needs_job(name) ? "MPI" : "a fabric"));
  }
  const std::string own_problem = name == "auto" ? why_no_fabric(encrypt) : "";
  MeetingReports reports;
  Meeting meeting{rank, world, exchange, name, {}, own_problem};
  for (const Preference& theirs :
       exchange_preferences(rank, world, exchange, name, agreement, own_problem.empty())) {
    std::vector<std::uint64_t>& keys = meeting.keys;
    const auto place = std::find(keys.begin(), keys.end(), theirs.host) - keys.begin();
    if (!theirs.may_use_fabric && meeting.no_fabric.empty()) {
      meeting.no_fabric = "rank " + std::to_string(keys.size()) + " has no fabric card that is active";
    }
    reports.machine.push_back(static_cast<int>(place));
    reports.agreement.push_back(theirs.agreement);
    if (reports.group == 0) reports.group = theirs.group;  // rank 0's
    keys.push_back(theirs.host);
  }
  auto transport = connected(meeting, mpi, encrypt);
  transport->reports = std::move(reports);
  return transport;
}

// The library stays loaded, because MPI calls back into it when it ends.
std::shared_ptr<MpiJob> join_mpi(const std::string& plugin, const void* communicator,
                                 const std::string& library, Clock::duration timeout) {
  void* loaded = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!loaded) throw Error("cannot load the mpi transport: " + std::string(dlerror()));
  void* found = dlsym(loaded, "ringreduce_join_mpi");
  if (!found) throw Error("cannot load the mpi transport: " + std::string(dlerror()));
  return (*reinterpret_cast<JoinMpi**>(found))(communicator, library, timeout);
}

}  // namespace ringreduce
