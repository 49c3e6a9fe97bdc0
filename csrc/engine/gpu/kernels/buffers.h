// How kernels of ranks that are processes of their own reach each other's arrays, wherever these lie: CUDA's
// allocations are mapped whole, once each, while calls go on through the arenas.
//
// Each rank has a book in the host's memory, which it writes and all ranks read.
// 1. A call offers the allocations that its array lies in, under a number, unless they are known. CUDA's own
//    number of an allocation tells it from one that had the address before.
// 2. Each other rank's thread that looks after this maps what is offered, and writes down where, or that it
//    cannot. CUDA may let it wait for all that the GPU runs; nobody waits for this thread, but captures.
// 3. When all have, the offering rank's calls say to each peer, in its mailbox on the GPU, where the peer
//    reaches the arrays; before, they say 0. All ranks read what all others say. So all combine directly, or
//    all take the arenas: no rank decides by what others may not know.
// 4. An offer is withdrawn when the memory was freed; or to make room, when no call of this rank is under way
//    (its kernels end when peers have done with its arrays) and no graph has it. Then peers unmap it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/gpu/repeating.h"
#include "transport/device/library.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {

class Buffers {
 public:
  // Where each rank reaches something.
  using Places = std::uint64_t[device::most_ranks];

  // Throws std::bad_alloc where there is no shared memory.
  Buffers(const CudaLibrary& cuda, int device, int rank, int world);
  // No call is under way, and it has stopped.
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // What the other ranks need for open(), by which they reach this one's book. False: they cannot.
  std::string address() const;
  bool open(const std::vector<std::string>& addresses);

  // As long as this is held nothing is withdrawn.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // Where each rank reaches an array of this one's. False: not all do, yet. What is `captured` is waited for,
  // because it stays so. On the current device, held.
  bool find(const void* memory, std::size_t bytes, bool captured, Places& places);

  // From now on what others offer is mapped, and room made. `is_idle`: whether no call is under way.
  void start(std::function<bool()> is_idle);
  // The group is over. From now on nothing is unmapped or withdrawn: this rank's memory may be freed before
  // peers hear of it, and kernels of theirs are yet to end.
  void freeze() { is_frozen_ = true; }
  // Returns when the last look is over.
  void stop() { thread_.reset(); }

 private:
  struct Book;
  struct Offer {
    enum { none, open, refused, ready } state = none;
    std::vector<device::Allocation> allocations;
    std::uint64_t number = 0;
    Places places = {};
    std::uint64_t last_use = 0;
    bool captured = false;
  };
  static constexpr int most_offers = 64;  // of a rank

  Book& book(int rank) const;
  int index_of(const Offer& offer) const { return static_cast<int>(&offer - offers_.data()); }
  Offer* offer_of(std::span<const device::Allocation> allocations);
  void make(Offer& offer);
  void unshare(const Offer& offer, std::size_t count);
  bool is_ready(Offer& offer);
  bool is_gone(const Offer& offer) const;
  void withdraw(Offer& offer);
  void make_room();
  void map_offers(int peer);
  void unmap(int peer, int index);
  void look();

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  std::vector<std::shared_ptr<SharedMemory>> books_;  // by rank
  std::mutex mutex_;                                  // of what follows
  std::array<Offer, most_offers> offers_;
  std::uint64_t last_number_ = 0, last_use_ = 0;
  bool lacks_room_ = false;
  std::atomic<bool> is_frozen_{false};
  // Of the thread that looks, which also writes down what is mapped.
  std::function<bool()> is_idle_;
  std::vector<std::uint64_t> changes_seen_;  // by rank
  int looks_ = 0;
  std::unique_ptr<Repeating> thread_;
};

}  // namespace ringreduce
