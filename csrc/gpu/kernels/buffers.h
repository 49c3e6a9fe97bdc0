// How kernels of ranks that are separate processes reach each other's arrays, wherever these lie: CUDA's
// allocations are mapped whole, once each, while calls continue through the arenas.
//
// Each rank has a book in host memory, which it writes and all ranks read. 1. A call offers the allocations
// that contain its array, under a number, unless they are known. CUDA's own number of an allocation
// distinguishes it from an earlier one at the same address. 2. On each other rank, a thread maps what is
// offered, and writes down where, or that it cannot. CUDA may make it wait for everything that runs on the
// GPU. Only captures wait for this thread. 3. Once all have mapped it, the offering rank's calls tell each
// peer, in its mailbox on the GPU, where the peer reaches the arrays; before that, they say 0. All ranks read
// what all others say. Either all combine directly, or all use the arenas: no rank decides from facts that
// others may not know. 4. An offer is withdrawn when the memory was freed; or to make room, when no call of
// this rank is running (its kernels end when peers have finished with its arrays) and no graph has it. Peers
// then unmap it.
//
// What ranks register together is offered and mapped in that call, and stays.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "gpu/device/library.h"
#include "gpu/kernels/cuda/errand.h"
#include "gpu/runner/pages.h"
#include "gpu/runner/repeating.h"
#include "transport/interface/exchange.h"

namespace ringreduce {

class Buffers {
 public:
  // The address at which each rank reaches something.
  using Places = std::uint64_t[device::most_ranks];

  // Throws std::bad_alloc if there is no shared memory.
  Buffers(const CudaLibrary& cuda, int device, int rank, int world);
  // No call is running, and it has been stopped.
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // What the other ranks pass to open(), which reaches this rank's book. It returns false if it cannot.
  std::string address() const { return books_.address(); }
  bool open(const std::vector<std::string>& addresses) { return books_.open(addresses); }

  // Where each rank reaches this rank's part of what all register now. A collective. Throws Error, on all
  // ranks, if a rank's memory cannot be shared. On the current device.
  void keep(const void* memory, std::size_t bytes, const Exchange& exchange, Places& places);
  // Ends that, for memory that was kept.
  void let_go(const void* memory);

  // While this is held, nothing is withdrawn.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // Where each rank reaches an array of this rank. False: some do not, yet. For a captured call it waits,
  // because the result stays in the graph. On the current device, with the lock held.
  bool find(const void* memory, std::size_t bytes, bool captured, Places& places);

  // Starts to map the others' offers, and to make room. `is_idle`: whether no call is running.
  void start(std::function<bool()> is_idle);
  // The group is over. From now on nothing is unmapped or withdrawn: this rank's memory may be freed before
  // peers hear of it, and their kernels have yet to end.
  void freeze() { is_frozen_ = true; }
  // Returns after the last look.
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
    int kept = 0;     // times
    std::string why;  // it is refused
  };
  static constexpr int most_offers = 64;  // of a rank

  Book& book(int rank) const;
  int index_of(const Offer& offer) const { return static_cast<int>(&offer - offers_.data()); }
  Offer* offer_of(std::span<const device::Allocation> allocations);
  Offer& offer_to_keep(const void* memory, std::size_t bytes);
  void tell(const Offer& offer, const void* memory, Places& places) const;
  void make(Offer& offer);
  void unshare(const Offer& offer, std::size_t count);
  bool is_ready(Offer& offer);
  bool is_gone(const Offer& offer) const;
  void withdraw(Offer& offer);
  void make_room();
  void map_offers();
  void map_offers(int peer);
  void unmap(int peer, int index);
  void look();

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  SharedPages books_;
  std::mutex mutex_;  // for what follows
  std::array<Offer, most_offers> offers_;
  std::map<const void*, std::uint64_t> kept_;  // numbers of offers
  std::uint64_t last_number_ = 0, last_use_ = 0;
  bool lacks_room_ = false;
  std::atomic<bool> is_frozen_{false};
  std::function<bool()> is_idle_;
  int looks_ = 0;                            // of the thread
  std::mutex mapping_;                       // held by who maps what others offer, and writes it down
  std::vector<std::uint64_t> changes_seen_;  // by rank
  std::unique_ptr<Repeating> thread_;
};

}  // namespace ringreduce
