// Explains why a group fails: which rank is to blame, and who called what. It reads the records that all
// ranks keep of their calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

class Diagnosis {
 public:
  explicit Diagnosis(Transport& transport) : transport_(transport) {}

  // The rank to blame if the call of this number (0: no collective) does not end while this rank waits for
  // `waiting_for`. A rank that itself waits for others is not to blame.
  int late_rank(int waiting_for, std::uint64_t number, Clock::duration waited) const;
  // The rank that has begun the fewest collectives, if fewer than this rank; else -1.
  int last_rank() const;
  // The number of the latest collective that a rank is known to have begun.
  std::uint64_t begun(int rank) const;
  // Throws a timeout that says who has made the call of this number (0: no collective) and who has not, and
  // lists every rank's latest calls, so that a person can see which one went wrong.
  [[noreturn]] void time_out(Clock::duration timeout, int waiting_for, std::uint64_t number,
                             const std::string& what) const;
  // For example "call #2, barrier(): rank 3 has not made this call, its last is #1, barrier(); rank 0 has
  // made it". About this rank's latest collective, and a rank that may be late.
  std::string latest_call(int late) const;
  // This rank's latest collective: "call #2, barrier()".
  std::string own_call() const;
  // A lost rank's last known call: ", whose last known call is #3, barrier()". Sends no question.
  std::string last_words(int rank) const;

  // The first call on record that two ranks made differently, if any.
  std::optional<std::uint64_t> first_disagreement() const;
  // Never this rank.
  int rank_that_called_otherwise(std::uint64_t number) const;
  // Every rank's call of the same number, this rank's latest or an earlier one, in words. `peer`: where this
  // rank noticed it.
  std::string disagreement(int peer, std::uint64_t latest) const;

 private:
  std::string who_has_come(int late, std::uint64_t number) const;
  std::vector<std::string> calls_numbered(std::uint64_t number) const;

  Transport& transport_;
};

}  // namespace ringreduce
