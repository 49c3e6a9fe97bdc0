#pragma once

#include "engine/planning/call.h"
#include "engine/program/layout.h"
#include "reduce/reduce.h"
#include "transport/interface/record.h"

namespace ringreduce {

struct Tally;

// A plan for an executor: all of a call but its buffers. What each call reads comes first: where sizes vary,
// no plan is in the first-level cache.
struct Plan {
  const Program* program = nullptr;
  Layout last_slice;
  int lanes = 1;                   // slices in flight
  bool uneven = false;             // no two slices are alike
  bool blind = false;              // takes uneven blocks of any lengths: see Planner::fit
  bool copies = false;             // messages are copied, also where peers could read them in place
  Encoding wire = Encoding::none;  // if not none, the program is coded
  DType dtype = DType::float32;    // of the call
  mutable Tally* tally = nullptr;  // the account's for this kind of call, once there has been one
  Combine combine = nullptr;       // for values of several ranks
  Combine last = nullptr;          // the combination that completes a result (divides for an average)
  double divide = 1;               // its scale
  Combine scale = nullptr;         // applied to this rank's own values when they are first read, or null
  std::uint64_t contract = 0;
  Record record;
  Geometry geometry;
  Layout full;                // of every slice but the last, unless they are uneven
  Extents fitted[2];          // blind: the latest call's blocks, of its input and of its output
  int algorithm = automatic;  // the chosen one
  int forest = -1;            // of "synthesised": see Way
  std::uint64_t variant = 0;  // the variant it was made as, for the contract
};

}  // namespace ringreduce
