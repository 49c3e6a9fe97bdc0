// The transport between threads of one process: the same channels as in shared memory, in ordinary memory,
// with every buffer of the process in reach of every rank.
#pragma once

#include <memory>
#include <vector>

#include "transport/memory/mapped.h"

namespace ringreduce {

class LocalTransport : public MappedTransport {
 public:
  // The transports of a new group of `world` ranks, by rank. Each is used by one thread at a time.
  static std::vector<std::unique_ptr<Transport>> group(int world);

  std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) override;

 protected:
  bool reachable(const void*, std::size_t) override { return true; }
  std::optional<Location> locate(const void* data, std::size_t bytes) override;
  std::byte* resolve(int peer, Location place) override;
  bool can_be_taken() const override { return false; }  // it may be mapped for reading only
  bool alive(int) override { return true; }
  // A thread always ends it. Freed memory may no longer be mapped, unlike memory of another process that this
  // one has opened.
  Clock::duration longest_access() const override { return Clock::duration::max(); }

 private:
  LocalTransport(int rank, int world, std::vector<Segment> segments, int cores)
      : MappedTransport("local", rank, world, std::move(segments), cores) {}
};

}  // namespace ringreduce
