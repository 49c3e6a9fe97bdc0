// Runs all ranks at once, on expressions instead of numbers, with sends that wait for their receivers.
#pragma once

#include <compare>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "schedule/check.h"
#include "schedule/expressions.h"
#include "schedule/schedule.h"

namespace ringreduce {

class SymbolicRun {
 public:
  // Runs to the end. The schedules must be well-formed (check_form) and outlive the run. Throws Refused if
  // the ranks block each other, a message does not fit, or a chunk is read that holds nothing.
  // `commute`: whether the operator does.
  explicit SymbolicRun(const std::vector<Schedule>& all, bool commute = true);

  // Throws Refused unless every rank holds the collective's result.
  void check_results();

  // How every result combines the ranks' values; Order::any if nothing is combined. Tells the others apart
  // only if the operator does not commute.
  Order order();

  // By round, the chunks in which this rank has combined something that any rank has sent.
  std::vector<std::vector<int>> passed_on(int rank) const;

 private:
  using Values = std::vector<int>;

  // A message with one end in its round, which waits for the other end.
  struct Offer {
    const Send* send = nullptr;
    std::size_t recv = 0;  // the Recv's index in its round, if that end came first
  };

  // The result of a combination in a chunk.
  struct Made {
    int round = 0, chunk = 0, value = 0;
  };

  struct Rank {
    const Schedule* plan = nullptr;
    int round = -1;
    int waiting = 0;  // messages of this round that have not met their other end
    Values chunks;
    std::vector<int> last_write;  // per chunk: the round of the last write
    std::vector<Values> arrived;  // per Recv of this round
    std::vector<Made> made;       // all its combinations so far
    // For a barrier: which ranks this rank knows to have come, at the beginning of the round and after it.
    std::vector<bool> heard, will_have_heard;

    bool finished() const { return round == static_cast<int>(plan->rounds.size()); }
    const Round& now() const { return plan->rounds[round]; }
  };

  // A value that a round writes to a chunk.
  struct Write {
    int chunk = 0, value = 0;
  };

  // One of the values that a round combines in a chunk; a Local's source counts as rank `world`.
  struct Operand {
    int chunk = 0, rank = 0, value = 0;
    friend auto operator<=>(const Operand&, const Operand&) = default;
  };

  Rank start(const Schedule& plan) const;
  void enter_next_round(int rank);
  void meet(int from, int to, const Offer& mine);
  void transfer(int from, int to, const Send& send, std::size_t recv);
  void finish_round(Rank& rank);
  void take_messages(const Rank& rank, std::vector<Write>& writes, std::vector<Operand>& operands) const;
  void take_copies(const Rank& rank, std::vector<Write>& writes, std::vector<Operand>& operands) const;
  void combine(Rank& rank, std::vector<Operand>& operands, std::vector<Write>& writes);
  // Calls visit(rank, chunk) for every chunk that is a result.
  template <class Visit>
  void each_result(Visit visit) const {
    for (const Rank& rank : ranks_) {
      for (int chunk = 0; chunk < rank.plan->chunks; ++chunk) {
        if (holds_result(*rank.plan, chunk)) visit(rank, chunk);
      }
    }
  }
  int contributors_to(const Rank& rank) const { return contributors(collective_, rank.plan->rank, world_); }
  [[noreturn]] void refuse_deadlock() const;
  void check_moved(const Rank& rank, int chunk) const;

  const std::vector<Schedule>& all_;
  const Collective collective_;
  const int world_;
  Expressions expressions_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::uint64_t, Offer> offers_;  // by sender and receiver
  std::vector<int> ready_;                           // ranks whose round is complete
  std::vector<bool> sent_;                           // by value; values beyond its end were not sent
};

}  // namespace ringreduce
