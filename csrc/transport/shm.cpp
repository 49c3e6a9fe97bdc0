#include "transport/shm.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "transport/wait.h"

namespace ringreduce {
namespace {

// What a rank tells the others at set-up: how to open its memory, and how to know that it is the right one.
struct Card {
  std::int32_t pid;
  std::int32_t fd;
  std::int32_t directory_fd;
  std::int32_t cores;
  std::uint64_t nonce;
};

Card read_card(const std::string& blob) {
  Card card;
  if (blob.size() != sizeof card) throw Error("the bootstrap exchange returned a malformed blob");
  std::memcpy(&card, blob.data(), sizeof card);
  return card;
}

std::shared_ptr<SharedMemory> open_segment(int peer, const Card& card, const SegmentLayout& layout) {
  auto segment = SharedMemory::open(card.pid, card.fd, layout.bytes);
  if (layout.header(segment->base).nonce != card.nonce) {
    throw Error("process " + std::to_string(card.pid) + " is not rank " + std::to_string(peer) +
                ": ranks of one group must share a host and a process namespace");
  }
  return segment;
}

}  // namespace

// A failure of one rank to open another's memory must fail all of them: hence the second exchange, which also
// keeps everybody's file descriptors open until all have used them.
std::unique_ptr<Transport> ShmTransport::create(int rank, int world, const Exchange& exchange) {
  const SegmentLayout layout(world, capacity_for(world));
  const auto own = SharedMemory::make(layout.bytes);
  Card card{getpid(), own->fd, shared_heap::directory_fd(), usable_cores(), 0};
  if (getrandom(&card.nonce, sizeof card.nonce, 0) != sizeof card.nonce) throw Error("no random numbers");
  layout.header(own->base).nonce = card.nonce;

  const auto blobs = exchange(std::string(reinterpret_cast<const char*>(&card), sizeof card));
  if (static_cast<int>(blobs.size()) != world) throw Error("the bootstrap exchange returned a wrong number of blobs");
  std::vector<std::shared_ptr<Segment>> segments(world);
  std::vector<Peer> peers(world);
  int cores = card.cores;
  std::string problem;
  try {
    for (int peer = 0; peer < world; ++peer) {
      const Card theirs = read_card(blobs[peer]);
      cores = std::min(cores, theirs.cores);
      if (peer == rank) {
        segments[peer] = own;
        continue;
      }
      peers[peer].pidfd = static_cast<int>(syscall(SYS_pidfd_open, theirs.pid, 0));
      segments[peer] = open_segment(peer, theirs, layout);
      peers[peer].heap = std::make_unique<PeerHeap>(theirs.pid, theirs.directory_fd);
    }
  } catch (const std::exception& error) {
    problem = "rank " + std::to_string(rank) + ": " + error.what();
  }
  const auto problems = exchange(problem);
  std::unique_ptr<Transport> transport(
      problem.empty() ? new ShmTransport(rank, world, std::move(segments), cores, std::move(peers)) : nullptr);
  for (const std::string& text : problems) {
    if (!text.empty()) throw Error("shared memory cannot connect the ranks: " + text);
  }
  return transport;
}

ShmTransport::ShmTransport(int rank, int world, std::vector<std::shared_ptr<Segment>> segments, int cores,
                           std::vector<Peer> peers)
    : MappedTransport(rank, world, std::move(segments), cores), peers_(std::move(peers)) {}

ShmTransport::~ShmTransport() {
  for (const Peer& peer : peers_) {
    if (peer.pidfd >= 0) ::close(peer.pidfd);
  }
}

std::optional<Location> ShmTransport::locate(const void* data, std::size_t bytes) {
  return shared_heap::locate(data, bytes);
}

std::byte* ShmTransport::resolve(int peer, Location place) { return peers_[peer].heap->resolve(place); }

// A pidfd becomes readable when its process has ended, reaped or not.
bool ShmTransport::alive(int peer) {
  if (peer == rank || peers_[peer].pidfd < 0) return true;
  pollfd entry{peers_[peer].pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) <= 0;
}

}  // namespace ringreduce
