// How a group uses GPUs. Groups that are made from it do the same, unless they are told otherwise.
#pragma once

namespace ringreduce {

struct GpuOptions {
  static constexpr int most_blocks = 64;

  // Thread blocks of the group's kernels on a rank's GPU, messages included. 0: as many as any group has. If
  // ranks differ, the fewest count.
  int min_blocks = 0, max_blocks = 0;
  // Copies between registered arrays take none. If one rank says so, all do it.
  bool copy_engine = false;
  // Of the group's own streams: lower goes first, as CUDA has it.
  int priority = 0;
};

}  // namespace ringreduce
