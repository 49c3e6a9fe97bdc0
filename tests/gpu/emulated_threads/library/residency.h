// How many thread blocks of ranks' kernels a device runs at the same time: RINGREDUCE_EMULATED_BLOCKS. What
// waits for blocks that find no room waits for ever, as it would on a card.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace ringreduce::emulated {

int blocks_that_fit();

class Residency {
 public:
  // Kernels begin one after the other, each with all its blocks.
  class Turn {
   public:
    Turn(Residency& of, int blocks);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Residency& of_;
  };

  void enter();  // a block; waits for room
  void leave();
  bool is_busy();
  int take_largest();  // the blocks of the largest kernel since the last call

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_turn_ = 0, turn_ = 0;
  int blocks_ = 0, largest_ = 0;
};

Residency& residency_of(int device);
// What may wait for all that a card runs.
void refuse_beside_kernels(int device, const std::string& what);

}  // namespace ringreduce::emulated
