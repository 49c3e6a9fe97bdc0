// Chooses which part of a long simulation is run, and extends the result to the whole.
#pragma once

#include <cstddef>
#include <vector>

#include "simulate/moment.h"
#include "simulate/repetition.h"
#include "simulate/simulator.h"

namespace ringreduce {

// Slices are alike, and so are the rounds of a ring. If even one slice takes too many messages, some rounds
// of each run of equal rounds are left out.
class Sample {
 public:
  // Removes rounds from the scripts.
  Sample(Repetition& repetition, const Question& question);

  int slices() const { return static_cast<int>(slice_ended_.size()); }
  double chunk_bytes() const { return chunk_bytes_; }  // of a slice

  // When a rank finished a round of a slice, and a slice.
  void note_round(int round, const Moment& ended);
  void note_slice(int slice, const Moment& ended);

  // Extends the answer to the whole.
  void complete(Answer& answer) const;

 private:
  struct Run {
    int first = 0, rounds = 0;  // those simulated
    int left_out = 0;
  };
  void shorten(std::vector<Script>& scripts, std::size_t messages);
  double seconds_left_out() const;

  const Question& question_;
  int slices_ = 1;  // all
  double chunk_bytes_ = 0;
  double messages_ = 1;  // all, divided by those of the simulated rounds
  std::vector<Run> runs_;
  std::vector<Moment> slice_ended_;
  std::vector<double> round_ended_;  // of the first slice; only if rounds are left out
};

}  // namespace ringreduce
