// Decides where a rank must continue with the value that its peers decode, instead of the one it had before
// encoding.
//
// Ranks end with the same bits if equal expressions have equal values everywhere. A value that any rank sends
// is therefore rounded as encoding and decoding round it, by each rank that makes it, before it is used for
// anything else. A rounded value does not change when it is encoded again, so received values can be passed
// on.
#pragma once

#include <vector>

#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ringreduce {

class Quantizing {
 public:
  // `passed_on`: null if the other ranks' schedules are unknown. All combined values then count as sent,
  // which is also correct, but rounds more often.
  Quantizing(const Schedule& schedule, const PassedOn* passed_on);

  // Whether this rank reads its own value of a chunk after a round's sends, except to send it.
  bool needed_in(int round, int chunk) const { return quantizes_ && needed_[round][chunk]; }
  // Whether the result of a combination in a chunk in a round must be rounded.
  bool combined_in(int round, int chunk) const { return quantizes_ && combined_[round][chunk]; }

 private:
  void look_back(const Schedule& schedule);

  const bool quantizes_;  // in other collectives only one rank ends with a value
  std::vector<std::vector<bool>> needed_, combined_;
};

}  // namespace ringreduce
