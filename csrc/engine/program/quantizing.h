// Where a rank must go on with what its peers decode, and not with what it had before encoding.
//
// Ranks end with the same bits if equal expressions have equal values everywhere. So a value that any rank
// sends is rounded, as encoding and decoding round it, where it is made: by each rank that makes it, and
// before anything else is done with it. What was rounded stays the same when it is encoded again, so what is
// received can be passed on.
#pragma once

#include <vector>

#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ringreduce {

class Quantizing {
 public:
  // `passed_on`: null if the other ranks' schedules are not known. All that is combined counts as sent then:
  // as right, with more roundings than are needed.
  Quantizing(const Schedule& schedule, const PassedOn* passed_on);

  // Whether this rank reads its own value of a chunk after a round's sends, other than to send it.
  bool needed_in(int round, int chunk) const { return quantizes_ && needed_[round][chunk]; }
  // Whether what is combined in a chunk in a round must be rounded.
  bool combined_in(int round, int chunk) const { return quantizes_ && combined_[round][chunk]; }

 private:
  void look_back(const Schedule& schedule);

  const bool quantizes_;  // elsewhere only one rank ends with a value
  std::vector<std::vector<bool>> needed_, combined_;
};

}  // namespace ringreduce
