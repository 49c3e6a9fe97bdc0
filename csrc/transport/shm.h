// Between processes of one host and one user: channels and arrays in anonymous shared memory (memfd), opened by
// peers through /proc, so neither the size of /dev/shm nor a crash matters.
#pragma once

#include <memory>
#include <vector>

#include "transport/mapped.h"
#include "transport/shared_heap.h"

namespace ringreduce {

class ShmTransport : public MappedTransport {
 public:
  // Collective over the ranks that `exchange` connects. Throws Error where memory cannot be shared with a peer
  // (another host, another user, a container of its own).
  static std::unique_ptr<Transport> create(int rank, int world, const Exchange& exchange);
  ~ShmTransport() override;

  const char* name() const override { return "shm"; }
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange);
  }

 protected:
  std::optional<Location> locate(const void* data, std::size_t bytes) override;
  std::byte* resolve(int peer, Location place) override;
  bool alive(int peer) override;

 private:
  struct Peer {
    int pidfd = -1;
    std::unique_ptr<PeerHeap> heap;
  };
  ShmTransport(int rank, int world, std::vector<std::shared_ptr<Segment>> segments, int cores,
               std::vector<Peer> peers);
  std::vector<Peer> peers_;
};

}  // namespace ringreduce
