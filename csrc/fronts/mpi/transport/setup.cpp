// How a group of ranks begins to use MPI, and what its ranks know about each other.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "fronts/mpi/transport/transport.h"
#include "transport/interface/exchange.h"

namespace ringreduce::mpi {
namespace {

// Measured between two ranks of a host, because MPI does not say where its limit is.
#ifdef OPEN_MPI
constexpr std::size_t longest_eager = 3840;
#else
constexpr std::size_t longest_eager = 8000;
#endif

constexpr std::size_t longest_problem = 300;

}  // namespace

// As in /proc, in the system's ticks; 0 for a process that does not exist or has ended.
std::uint64_t MpiTransport::start_of(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name = text.rfind(')');
  if (name == std::string::npos) return 0;
  std::istringstream fields(text.substr(name + 2));
  std::string field;
  constexpr int start_field = 20;  // counted from the state, which follows the name
  for (int i = 0; i < start_field && fields >> field; ++i) {
    if (i == 0 && (field == "Z" || field == "X")) return 0;
  }
  return fields ? std::strtoull(field.c_str(), nullptr, 10) : 0;
}

MpiTransport::Member MpiTransport::own_member(Home& home) {
  Member member;
  member.host = this_host();
  member.cores = usable_cores();
  member.process = getpid();
  member.started = start_of(member.process);
  struct stat processes{};
  if (stat("/proc/self/ns/pid", &processes) == 0) member.processes = processes.st_ino;
  member.place = home.rank;
  return member;
}

// A failure of one rank must fail all, so there is a second exchange.
std::unique_ptr<RemoteTransport> MpiTransport::create(std::shared_ptr<Home> home, int rank, int world,
                                                      const Exchange& exchange) {
  Member own = own_member(*home);
  std::string problem;
  try {
    if (rank == 0) own.number = home->new_number();
  } catch (const Error& error) {
    problem = error.what();
  }
  std::vector<Member> members = exchange_values(exchange, world, own);
  problem.resize(std::min(problem.size(), longest_problem));
  const auto problems = exchange(problem);
  for (int r = 0; r < world; ++r) {
    if (!problems[r].empty()) throw Error("rank " + std::to_string(r) + ": " + problems[r]);
  }
  const bool crowded = some_host_is_crowded(members);
  return std::unique_ptr<RemoteTransport>(
      new MpiTransport(std::move(home), rank, world, std::move(members), crowded));
}

MpiTransport::MpiTransport(std::shared_ptr<Home> home, int rank, int world, std::vector<Member> members,
                           bool crowded)
    : RemoteTransport("mpi", rank, world, crowded),
      home_(std::move(home)),
      members_(std::move(members)),
      tags_(home_->tags_of(members_[0].number)),
      slot_bytes_(longest_whole(crowded) + sizeof(FrameHeader)),
      peers_by_place_(static_cast<std::size_t>(home_->size), -1),
      open_(static_cast<std::size_t>(world)) {
  for (int peer = 0; peer < world; ++peer) peers_by_place_[place_of(peer)] = peer;
  facts_.distant = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.host.machine != members_[0].host.machine;
  });
  facts_.longest_eager = longest_eager;
  const Lock lock(mutex_);
  add(MPI_REQUEST_NULL, Purpose{Purpose::Kind::hello});
  listen_for_hello();
  enter(this);
}

MpiTransport::~MpiTransport() {
  if (disowned_) return;
  close();
  leave(this);
}

// --- dead ranks ------------------------------------------------------------------------------------------

// MPI itself may never report it, because its launcher usually ends everything. For processes of this host,
// the system knows.
void MpiTransport::look_after(int peer) {
  const Member& own = members_[rank];
  const Member& theirs = members_[peer];
  if (peer == rank || control_.has_left(peer) || theirs.started == 0) return;
  if (theirs.host.machine != own.host.machine || theirs.processes != own.processes) return;
  if (start_of(theirs.process) == theirs.started) return;
  lost_some_ = true;
  end_without_others();
  control_.lost(peer, "died", true);
}

// --- threads ---------------------------------------------------------------------------------------------

// Usually any thread may call MPI, otherwise only the one that initialised it. Asynchronous calls are then
// refused before they begin.
void MpiTransport::check() {
  RemoteTransport::check();
  if (!may_call()) refuse();
}

void MpiTransport::check_background() {
  if (!any_thread_may_call()) refuse();
}

}  // namespace ringreduce::mpi
