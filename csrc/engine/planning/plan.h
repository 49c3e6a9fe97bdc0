#pragma once

#include "engine/planning/call.h"
#include "engine/program/layout.h"
#include "reduce/reduce.h"
#include "transport/interface/messages.h"
#include "transport/interface/record.h"

namespace ringreduce {

struct Tally;

// An array of this rank.
struct OwnArray {
  std::size_t bytes = 0;
  std::size_t before = 0;  // bytes, see before_input()
};

// What an executor works out when it first runs a plan.
struct Prepared {
  bool known = false;
  bool through_slots = false;           // see Executor::tells
  Traffic traffic = Traffic::any;       // of its messages
  int lanes = 0;                        // slices in flight
  std::size_t small = 0;                // bytes up to which messages are small
  std::size_t temp = 0, with_wide = 0;  // lines of memory for a lane: temporary, and with the widened arrays
};

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
  mutable Prepared prepared;       // by the one executor that runs it
  mutable Tally* tally = nullptr;  // the account's for this kind of call, once there has been one
  Combine combine = nullptr;       // for values of several ranks
  Combine last = nullptr;          // the combination that completes a result (divides for an average)
  double divide = 1;               // its scale
  Combine scale = nullptr;         // applied to this rank's own values when they are first read, or null
  OwnArray input, output;
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
