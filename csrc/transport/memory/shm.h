// The transport between processes of one host and one user: channels and arrays in anonymous shared memory
// (memfd), which peers open through /proc. Neither the size of /dev/shm nor a crash matters.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <vector>

#include "transport/memory/mapped.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {

class ShmTransport : public MappedTransport {
 public:
  // Collective over the ranks that `exchange` connects; exchanges twice. Throws Error if memory cannot be
  // shared with a peer (on another host, of another user, in a container of its own). `names`: the ranks'
  // names in errors, if not their numbers.
  static std::unique_ptr<ShmTransport> create(int rank, int world, const Exchange& exchange,
                                              const std::vector<int>& names = {});

  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange);
  }

  bool reachable(const void* data, std::size_t bytes) override;

  // The program may keep what it has closed: only the memory is in use until then.
  void close() override;

 protected:
  std::optional<Location> locate(const void* data, std::size_t bytes) override;
  std::byte* resolve(int peer, Location place) override;
  bool can_be_taken() const override { return true; }  // it is of block_pool, mapped for writing by all
  bool alive(int peer) override;

 private:
  // A peer's process. Without pidfds (old kernels, strict containers), /proc shows whether it lives.
  struct Process {
    // Whether it ends within this time.
    bool ended(int milliseconds) const;

    pid_t pid = 0;
    Descriptor fd;
  };
  struct Peer {
    Process process;
    PeerHeap heap;
  };
  ShmTransport(int rank, int world, std::vector<Segment> segments, int cores, std::vector<int> names,
               std::shared_ptr<SharedMemory> own, std::vector<Peer> peers)
      : MappedTransport("shm", rank, world, std::move(segments), cores, std::move(names)),
        own_(std::move(own)),
        peers_(std::move(peers)) {}

  const std::shared_ptr<SharedMemory> own_;
  std::mutex descriptors_;  // of the peers' processes
  std::vector<Peer> peers_;
};

}  // namespace ringreduce
