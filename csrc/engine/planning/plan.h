#pragma once

#include "engine/planning/call.h"
#include "engine/program/layout.h"
#include "reduce/reduce.h"
#include "transport/interface/record.h"

namespace ringreduce {

// What a call becomes, but for its buffers: what an executor runs.
struct Plan {
  const Program* program = nullptr;
  int algorithm = automatic;  // the one that was chosen
  int forest = -1;            // of "synthesised": see Way
  std::uint64_t variant = 0;  // what it was made as, for the contract
  Geometry geometry;
  Layout full, last_slice;         // of every slice but the last; and of that, where slices are alike
  bool uneven = false;             // no two slices are alike
  int lanes = 1;                   // slices in flight
  Combine combine = nullptr;       // between ranks
  Combine last = nullptr;          // the combination that completes a result (divides for an average)
  double divide = 1;               // its scale
  Combine scale = nullptr;         // applied to this rank's own values when they are first read, or null
  Encoding wire = Encoding::none;  // other than none: the program is coded
  std::uint64_t contract = 0;
  Record record;
};

}  // namespace ringreduce
