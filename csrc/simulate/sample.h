// Which part of a long simulation is made, and what the whole takes.
#pragma once

#include <cstddef>
#include <vector>

#include "simulate/moment.h"
#include "simulate/repetition.h"
#include "simulate/simulator.h"

namespace ringreduce {

// Slices are alike. So are rounds, in a ring; where even one slice takes too many messages, some of each run
// of rounds that are alike are left out.
class Sample {
 public:
  // Takes rounds out of the scripts.
  Sample(Repetition& repetition, const Question& question);

  int slices() const { return static_cast<int>(slice_ended_.size()); }
  double chunk_bytes() const { return chunk_bytes_; }  // of a slice

  // When a rank was done with a round of a slice, and with a slice.
  void note_round(int round, const Moment& ended);
  void note_slice(int slice, const Moment& ended);

  // Makes the answer that of the whole.
  void complete(Answer& answer) const;

 private:
  struct Run {
    int first = 0, rounds = 0;  // those that are simulated
    int left_out = 0;
  };
  void shorten(std::vector<Script>& scripts, std::size_t messages);
  double seconds_left_out() const;

  const Question& question_;
  int slices_ = 1;  // all
  double chunk_bytes_ = 0;
  double messages_ = 1;  // all, over those of the rounds that are simulated
  std::vector<Run> runs_;
  std::vector<Moment> slice_ended_;
  std::vector<double> round_ended_;  // of the first slice; only where rounds are left out
};

}  // namespace ringreduce
