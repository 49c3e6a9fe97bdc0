// Turns a call into the plan that runs it, on the CPU or a GPU: chooses the algorithm, makes its program,
// cuts the slices, and remembers all of it for the next call of the same kind.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/call.h"
#include "engine/planning/links.h"
#include "engine/planning/plans.h"
#include "engine/planning/tuned.h"
#include "engine/planning/tuning.h"
#include "synthesis/synthesis.h"

namespace ringreduce {

// Whether RINGREDUCE_REPRODUCIBLE is 1 (and not 0, empty or unset). Throws InvalidArgument for other values.
bool reproducible_by_environment();

// The engine that runs a plan.
struct Target {
  Tuning tuning = Tuning::memory;
  std::size_t capacity = 0;  // bytes that hold a rank's messages of two rounds
  bool oversubscribed = false;
  int shared_cores = 0;  // as of a Transport
  std::size_t longest_eager = 0;
  // The name of its own method, if it runs no schedules: a plan then is only a record and a contract.
  const char* own_way = nullptr;
  int blocks = 0;  // that walk slices side by side; 0: slices are as long as the tables say

  // Kernels do not care which ranks share a host and how fast links are.
  bool uses_links() const { return tuning != Tuning::kernels; }
};

class Planner {
 public:
  // `reproducible`: reductions run only algorithms that keep rank order. Throws InvalidArgument if
  // RINGREDUCE_ALGORITHM names an unknown algorithm, or one that does not.
  Planner(int rank, int world, const Target& cpu, bool reproducible, std::vector<int> hosts = {},
          std::shared_ptr<const Tuned> tuned = nullptr);

  // Throws InvalidArgument for a call that cannot be served. The reference is valid until the next call.
  const Plan& plan(const Call& call) { return plan(call, cpu_); }
  // The planner identifies the target by its address, so the target must live as long as it is used.
  const Plan& plan(const Call& call, const Target& target);
  // Whether RINGREDUCE_ALGORITHM names the algorithm.
  bool is_forced(Collective collective) const { return forced_.contains(collective); }
  bool is_forced(Collective collective, std::string_view algorithm) const;
  // The choice for a buffer of so many bytes, and why, in words.
  std::pair<Choice, std::string> explain(Collective collective, std::size_t bytes,
                                         Encoding wire = Encoding::none, bool commutes = true) const;
  // Sets what is known about links, which affects later choices. The same on all ranks.
  void know(std::vector<int> order, const Links& links);
  const std::vector<int>& order() const { return order_; }
  // Computes the algorithm "synthesised". Until then, it is the usual one. The same on all ranks.
  void synthesise(Network network);
  // Bytes of memory that plans take.
  std::size_t footprint() const { return plans_.bytes(); }
  const Synthesis* synthesis() const { return synthesis_.get(); }
  // The tables that algorithms are chosen from.
  std::string tables_in_words() const;
  // The way in which "synthesised" handles a buffer of this many bytes.
  Way synthesised(std::size_t bytes);
  int add(const std::string& name, Schedule schedule, int heaviest_round, Order order);
  struct Custom {
    std::string name;
    Schedule schedule;
    int heaviest_round;
    Order order;
  };
  // The schedule that was added under this number; null if there is none.
  const Custom* custom(int algorithm) const;

 private:
  static constexpr int first_custom = 1 << 16;  // handles from here on stand for custom schedules

  void forget();
  const Plan& plan_uneven(const Call& call, const PlanKey& key, const Target& target);
  Plan make(const Call& call, const Target& target);
  void measure_arrays(const Call& call, Plan& plan) const;
  void fit(const Call& call, Plan& plan) const;
  void plan_reduction(const Call& call, DType dtype, Plan& plan) const;
  void check(const Call& call) const;
  void check_rank_order(Collective collective, int algorithm, const UserOp* op = nullptr) const;
  const Program& program(const Call& call, int algorithm, bool uses_links, int forest, bool keeps_first);
  static Program lower_custom(const Call& call, const Custom& custom, bool keeps_first);
  Program lower_entry(const Call& call, const Entry& entry, bool uses_links, int forest,
                      bool keeps_first) const;
  std::size_t pick(const Call& call, std::size_t bytes, const Target& target, Plan& plan);
  Choice synthesised_choice(const Situation& here, const Target& target, Plan& plan);
  Situation situation(Collective collective, std::size_t bytes, Encoding wire, const Target& target) const;
  Choice choose(const Situation& situation) const;
  Choice usual_choice(const Situation& situation) const {
    return ::ringreduce::choose(situation, tuned_.get());
  }
  std::string name_of_algorithm(int algorithm) const;

  const int rank_, world_;
  const Target cpu_;
  const bool reproducible_;
  const std::vector<int> hosts_;              // the host of each rank; empty: all share one, or none do
  const std::vector<int> cores_;              // see Place
  const std::shared_ptr<const Tuned> tuned_;  // may be null
  std::vector<int> order_;                    // see Place
  double pace_ = 1, latency_ = 0, rate_ = 0;  // see Situation
  std::map<Collective, int> forced_;          // RINGREDUCE_ALGORITHM
  Plans plans_;
  // The last call with uneven blocks, which the next one often repeats.
  struct Uneven {
    std::optional<PlanKey> key;
    Extents input, output;
    Plan plan;
  } uneven_;
  std::map<std::array<int, 7>, std::unique_ptr<Program>> programs_;
  std::unique_ptr<Synthesis> synthesis_;
  std::map<std::size_t, Way> ways_;  // by the buffer's rounded-up size
  std::vector<Custom> custom_;
};

}  // namespace ringreduce
