// From a call to what the executor runs: chooses the algorithm, makes its program, cuts the slices, and
// remembers all of it for the next call of the same kind.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/planning/call.h"
#include "engine/planning/description.h"
#include "engine/planning/tuning.h"
#include "engine/program/layout.h"
#include "reduce/reduce.h"
#include "transport/interface/errors.h"

namespace ringreduce {

// Whether RINGREDUCE_REPRODUCIBLE is 1 (and not 0, empty or unset). Throws InvalidArgument for other values.
bool reproducible_by_environment();

// What a call becomes, but for its buffers.
struct Plan {
  const Program* program = nullptr;
  Geometry geometry;
  Layout full, last_slice;  // not of uneven blocks
  bool uneven = false;
  int lanes = 1;
  Combine combine = nullptr;
  Combine last = nullptr;
  Combine scale = nullptr;
  double divide = 1;
  Encoding wire = Encoding::none;
  std::uint64_t contract = 0;
  Record record;
};

class Planner {
 public:
  // `reproducible`: reductions run only what keeps rank order. Throws InvalidArgument if RINGREDUCE_ALGORITHM
  // names what there is not, or what does not.
  Planner(int rank, int world, bool oversubscribed, const char* transport, std::size_t capacity,
          bool reproducible, std::vector<int> hosts = {});

  // Throws InvalidArgument for what cannot be served. The reference is good until the next call.
  const Plan& plan(const Call& call);
  // The same for what is run by somebody else, called `name`: its record and its contract only.
  const Plan& plan_elsewhere(const Call& call, const std::string& name);
  // Whether RINGREDUCE_ALGORITHM says what runs it.
  bool is_forced(Collective collective) const { return forced_.contains(collective); }
  Choice choose(Collective collective, std::size_t bytes, Encoding wire = Encoding::none) const;
  // What links are worth changes what is chosen from now on. The same on all ranks.
  void know(std::vector<int> order, double pace);
  const std::vector<int>& order() const { return order_; }
  // Takes over the schedules that were added to another planner, under their numbers there, and what it
  // knows.
  void follow(const Planner& other);
  int add(const std::string& name, Schedule schedule, int heaviest_round, bool in_rank_order);

 private:
  struct Key {
    Collective collective{};
    DType dtype{};
    Op op{};
    int root = 0;
    int algorithm = 0;
    std::size_t count = 0;
    std::size_t slice_bytes = 0;
    int lanes = 0;
    Encoding wire{};
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Slot {
    bool used = false;
    Key key;
    Plan plan;
  };
  struct Custom {
    std::string name;
    Schedule schedule;
    int heaviest_round;
    bool in_rank_order;
  };

  struct Shape {
    std::size_t longest = 0;  // elements: of the buffer, or of the longest block
    std::size_t total = 0;
    std::uint64_t hash = 0;
  };

  Shape shape_of(const Call& call) const;
  void make(const Call& call, Plan& plan);
  void describe(const Call& call, const Shape& shape, const std::string& name, Plan& plan) const;
  void check(const Call& call) const;
  void check_rank_order(Collective collective, int algorithm) const;
  const Program& program(Collective collective, int algorithm, int root, bool coded);
  Program lower_custom(Collective collective, int algorithm, int root, bool coded) const;
  Program lower_entry(Collective collective, int algorithm, int root, bool coded) const;
  struct Picked {
    int algorithm;
    std::size_t slice_bytes;
    int lanes;
  };
  Picked pick(const Call& call, std::size_t bytes) const;
  std::string name_of_algorithm(int algorithm) const;

  const int rank_, world_;
  const bool oversubscribed_;
  const char* const transport_;
  const std::size_t capacity_;
  const bool reproducible_;
  const std::vector<int> hosts_;      // which ranks share one; empty: all do, or none
  std::vector<int> order_;            // see Place
  double pace_ = 1;                   // see Situation
  std::map<Collective, int> forced_;  // RINGREDUCE_ALGORITHM
  std::array<Slot, 64> cache_;
  Plan uneven_;
  std::map<std::array<int, 4>, std::unique_ptr<Program>> programs_;
  std::vector<Custom> custom_;
};

}  // namespace ringreduce
