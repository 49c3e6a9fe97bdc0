// What is said when a group fails: which rank is to blame, and who called what. It reads the records that all
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

  // The rank to blame where the call of this number (0: no collective) does not end, and this rank waits for
  // that one: who waits for others in turn is not.
  int late_rank(int waiting_for, std::uint64_t number, Clock::duration waited) const;
  // The rank that has begun the fewest collectives, if that is fewer than this rank has; else -1.
  int last_rank() const;
  // The number of the latest collective that a rank is known to have begun.
  std::uint64_t begun(int rank) const;
  // With every rank's latest calls, for a person who must find out which of them went wrong.
  [[noreturn]] void time_out(Clock::duration timeout, int waiting_for, const std::string& what) const;

  // The first call, of those still on record, that two ranks made differently, if there is one.
  std::optional<std::uint64_t> first_disagreement() const;
  // Another one than this.
  int rank_that_called_otherwise(std::uint64_t number) const;
  // Every rank's call of the same number, this rank's latest or an earlier one; it was noticed at `peer`.
  std::string disagreement(int peer, std::uint64_t latest) const;

 private:
  std::vector<std::string> calls_numbered(std::uint64_t number) const;

  Transport& transport_;
};

}  // namespace ringreduce
