#include "transport/memory/shm.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "transport/interface/cores.h"
#include "transport/interface/exchange.h"
#include "transport/memory/block_pool.h"

namespace ringreduce {
namespace {

constexpr int death_takes = 500;  // milliseconds at most, from releasing memory to counting as ended

// A rank's report to the others at set-up: how to open its memory, and how to recognise it.
struct SegmentAddress {
  std::int32_t pid;
  std::int32_t fd;
  std::uint64_t nonce;
  Cores cores;
};

Segment open_segment(int peer, const SegmentAddress& address, const SegmentLayout& layout) {
  const auto memory = SharedMemory::open(address.pid, address.fd, layout.bytes);
  if (layout.header(memory->base).nonce != address.nonce) {
    throw Error("process " + std::to_string(address.pid) + " is not rank " + std::to_string(peer));
  }
  return {memory, memory->base};
}

// A rank's report on opening the others' memory: "", or "<rank that died or -1> <text>".
constexpr std::size_t longest_problem = 400;
constexpr auto who_can = ". Ranks that share memory must run as one user, on one host and in one container";

[[noreturn]] void raise(const std::string& problem, int teller) {
  const int dead = std::atoi(problem.c_str());
  const std::string text = problem.substr(problem.find(' ') + 1);
  if (dead >= 0) throw Failure(Cause::peer_lost, dead, text);
  throw Error("cannot connect the ranks through shared memory: rank " + std::to_string(teller) + ": " + text,
              teller);
}

}  // namespace

// If one rank cannot open another's memory, all must fail. The second exchange tells them, and also
// keeps all file descriptors open until every rank has used them.
std::unique_ptr<ShmTransport> ShmTransport::create(int rank, int world, const Exchange& exchange,
                                                   const std::vector<int>& names) {
  const auto name = [&](int peer) { return names.empty() ? peer : names[peer]; };
  const SegmentLayout layout(world, capacity_for(world));
  std::shared_ptr<SharedMemory> own;
  std::string problem;
  SegmentAddress address{getpid(), -1, 0, usable_cores()};
  try {
    own = SharedMemory::make(layout.bytes);
    address.fd = own->fd.get();
    if (address.fd < 0 && world > 1) problem = "-1 the system does not let it share memory (memfd_create)";
  } catch (const std::bad_alloc& error) {
    problem = std::string("-1 ") + error.what();  // reported to the others below
  }
  if (getrandom(&address.nonce, sizeof address.nonce, 0) != sizeof address.nonce)
    throw Error("the system returned no random numbers");
  if (own) layout.header(own->base).nonce = address.nonce;

  const auto addresses = exchange_values(exchange, world, address);
  std::vector<Segment> segments(world);
  std::vector<Peer> peers(world);
  Cores cores;
  for (const SegmentAddress& one : addresses) cores.add(one.cores);
  for (int peer = 0; peer < world && problem.empty(); ++peer) {
    const SegmentAddress& theirs = addresses[peer];
    if (peer == rank) segments[peer] = {own, own->base};
    if (peer == rank || theirs.fd < 0) continue;  // a rank without memory reports the problem itself
    try {
      peers[peer].process = {theirs.pid,
                             Descriptor(static_cast<int>(syscall(SYS_pidfd_open, theirs.pid, 0)))};
      segments[peer] = open_segment(peer, theirs, layout);
    } catch (const std::exception& error) {
      const bool died = peers[peer].process.ended(death_takes);
      const std::string number = std::to_string(died ? name(peer) : -1);
      problem = number + " ";
      problem += died ? "rank " + number + " died while the ranks were connecting"
                      : error.what() + std::string(who_can);
      problem.resize(std::min(problem.size(), longest_problem));
    }
  }
  const auto problems = exchange(problem);
  for (int peer = 0; peer < world; ++peer) {
    if (!problems[peer].empty()) raise(problems[peer], name(peer));
  }
  return std::unique_ptr<ShmTransport>(new ShmTransport(rank, world, std::move(segments), cores.count(),
                                                        names, std::move(own), std::move(peers)));
}

bool ShmTransport::reachable(const void* data, std::size_t bytes) {
  return world > 1 && block_pool::reach(data, bytes).has_value();
}

std::optional<Location> ShmTransport::locate(const void* data, std::size_t bytes) {
  return block_pool::locate(data, bytes);
}

// A dying process releases its memory some time before it counts as ended.
std::byte* ShmTransport::resolve(int peer, Location place) {
  try {
    return peers_[peer].heap.resolve(peers_[peer].process.pid, place);
  } catch (const Error&) {
    const std::lock_guard lock(descriptors_);
    if (!peers_[peer].process.ended(death_takes)) throw;
    throw Failure(Cause::peer_lost, name_of(peer), in_words(peer) + " died");
  }
}

void ShmTransport::close() {
  MappedTransport::close();
  own_->fd.reset();
  const std::lock_guard lock(descriptors_);
  for (Peer& peer : peers_) peer.process.fd.reset();
}

bool ShmTransport::alive(int peer) {
  const std::lock_guard lock(descriptors_);
  return peer == rank || !peers_[peer].process.ended(0);
}

// A pidfd becomes readable when its process has ended, reaped or not.
bool ShmTransport::Process::ended(int milliseconds) const {
  if (fd.get() >= 0) {
    pollfd entry{fd.get(), POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) > 0;
  }
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name = text.rfind(')');  // the state follows the name
  return name == std::string::npos || text.find_first_of("ZX", name) == name + 2;
}

}  // namespace ringreduce
