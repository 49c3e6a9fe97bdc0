// Collectives that only copy, between arrays in memory that all ranks have registered, by CUDA's copies,
// which copy engines do between GPUs: no kernel of ours runs, and computation keeps all thread blocks.
// Streams meet through words in the host's memory, which they write for their peers and wait for
// (cuStreamWriteValue64, cuStreamWaitValue64).
//
// Each rank reads from its peers' arrays, and writes only to its own. Once its calls are given up, their
// streams continue with what was launched, and must not write to a peer that has not come.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/planning/planner.h"
#include "gpu/device/memory.h"
#include "gpu/runner/pages.h"
#include "gpu/runner/runner.h"
#include "transport/interface/exchange.h"

namespace ringreduce {

class CopyEngine {
 public:
  // A collective. Throws Error on all ranks if they cannot reach each other's words. `one_process`: all ranks
  // are threads of this one.
  CopyEngine(const CudaLibrary& cuda, int device, int rank, int world, bool one_process,
             const Exchange& exchange);
  // What was launched has ended.
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Registers memory of all ranks, in the same order on each: a collective. `places`: where each rank
  // reaches this one's.
  void add(const void* memory, std::size_t bytes, std::span<const std::uint64_t> places,
           const Exchange& exchange);
  void remove(const void* memory);

  // Null: the call is none of these, or not of registered arrays. All ranks know this without a word, because
  // their arrays lie at the same place of the same registered memory. If those of some rank do not, the
  // ranks' contracts differ.
  const Plan* plan(Planner& planner, const Call& call);
  // The last planned call.
  void launch(const Call& call, std::uint64_t contract, void* stream);

  std::uint64_t begun() const { return __atomic_load_n(begun_, __ATOMIC_ACQUIRE); }
  std::uint64_t ended() const { return __atomic_load_n(ended_, __ATOMIC_ACQUIRE); }
  // Lets streams continue. A peer's stream may still write an earlier number into a word, so this is repeated
  // until they have.
  void give_up();

 private:
  // Of a rank, for each peer, which writes it: the last round for which the peer was ready to be read, and
  // the last one that it has read.
  struct Words {
    std::uint64_t ready, done;
  };
  struct Window {
    std::uint64_t number, begin, bytes;
    std::vector<std::uint64_t> places;  // where this rank reaches each rank's
  };
  // Where a call's arrays lie.
  struct Spot {
    std::vector<std::uint64_t> places;  // where this rank reaches each rank's
    std::uint64_t number, offset;
    bool in_place;  // each rank's block lies in the output
  };
  struct Copy {
    int from;
    std::uint64_t source, target, bytes;
  };
  struct Round {
    std::vector<Copy> copies;
    std::vector<int> readers;  // the ranks that copy from this one
  };

  void reach_in_process(const Exchange& exchange);
  void reach_by_pages(const Exchange& exchange);
  std::optional<Spot> spot_of(const Call& call) const;
  std::optional<Spot> spot_of(const void* array, std::size_t bytes) const;
  std::vector<Round> rounds_of(const Call& call) const;
  std::vector<Round> broadcast(std::uint64_t output, std::uint64_t bytes, int root) const;
  Round round_of(std::uint64_t shift, const Call& call, bool reads, bool is_read) const;
  void run(const Round& round, std::uint64_t contract, void* stream);
  void copy(std::span<const Copy> copies, void* stream) const;

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  std::vector<std::shared_ptr<DeviceMemory>> kept_;  // words of ranks in this process
  std::unique_ptr<SharedPages> pages_;               // or those of other processes
  std::vector<Words*> words_;                        // of each rank, where streams reach them
  Words* own_ = nullptr;                             // where the host does
  DeviceMemory counts_;
  std::uint64_t *const begun_, *const ended_;
  std::uint64_t launched_ = 0, round_ = 0;
  mutable std::mutex mutex_;  // for what follows
  std::vector<Window> windows_;
  std::uint64_t last_number_ = 0;
  std::optional<Spot> spot_;  // of the last plan
};

}  // namespace ringreduce
