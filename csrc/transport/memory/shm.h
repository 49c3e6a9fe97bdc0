// Between processes of one host and one user: channels and arrays in anonymous shared memory (memfd), opened
// by peers through /proc, so neither the size of /dev/shm nor a crash matters.
#pragma once

#include <sys/types.h>

#include <memory>
#include <utility>
#include <vector>

#include "transport/memory/mapped.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {

class ShmTransport : public MappedTransport {
 public:
  // Collective over the ranks that `exchange` connects, twice. Throws Error where memory cannot be shared
  // with a peer (another host, another user, a container of its own). `names`: what the ranks are called in
  // what goes wrong, if not by their numbers.
  static std::unique_ptr<ShmTransport> create(int rank, int world, const Exchange& exchange,
                                              const std::vector<int>& names = {});

  const char* name() const override { return "shm"; }
  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override {
    return create(rank, world, exchange);
  }

 protected:
  std::optional<Location> locate(const void* data, std::size_t bytes) override;
  std::byte* resolve(int peer, Location place) override;
  bool alive(int peer) override;

 private:
  // The process of a peer. Without pidfds (old kernels, strict containers) /proc says whether it lives.
  class Process {
   public:
    Process() = default;
    explicit Process(pid_t pid);
    Process(Process&& other) noexcept
        : pid_(std::exchange(other.pid_, 0)), fd_(std::exchange(other.fd_, -1)) {}
    Process& operator=(Process&& other) noexcept {
      std::swap(pid_, other.pid_);
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~Process();
    // Whether it has ended within this time.
    bool ended(int milliseconds) const;

   private:
    pid_t pid_ = 0;
    int fd_ = -1;
  };
  struct Peer {
    Process process;
    std::unique_ptr<PeerHeap> heap;
  };
  ShmTransport(int rank, int world, std::vector<std::shared_ptr<Segment>> segments, int cores,
               std::vector<Peer> peers);
  std::vector<Peer> peers_;
};

}  // namespace ringreduce
