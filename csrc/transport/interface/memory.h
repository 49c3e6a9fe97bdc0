// Messages by reference: memory that a rank lends to its peers, or grants to them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/interface/messages.h"

namespace ringreduce {

class MemoryPlane {
 public:
  virtual ~MemoryPlane() = default;

  // Sends by reference, if the peers can reach this memory: they read it in place, and it must not change
  // until consumed(). `data` is null if the bytes have already been written where the peers granted it.
  // `grant`, if not null, is where a peer may write its next value of the same chunks.
  //
  // reachable() asks for a call that is about to use this memory and owns it until it ends: no other thread
  // writes it. A transport may therefore move it to where peers reach it.
  virtual bool reachable(const void* data, std::size_t bytes) = 0;
  // Whether any memory can be lent to these peers and is sent in place.
  virtual bool reachable_by(Peers) const { return false; }
  virtual bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
                    std::byte* grant) = 0;
  // Around every use of what peers have lent or granted, once it has arrived; see Access. begin_access()
  // throws what check() throws. abort() returns only after the peers' accesses have ended.
  virtual void begin_access() = 0;
  virtual void end_access() = 0;

  // Bytes of memory that this rank holds for the group.
  virtual std::size_t footprint() const = 0;
};

// A peer whose call fails keeps what it has lent until this object is gone.
class Access {
 public:
  explicit Access(MemoryPlane& memory) : memory_(memory) { memory_.begin_access(); }
  ~Access() { memory_.end_access(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  MemoryPlane& memory_;
};

}  // namespace ringreduce
