// The values of chunks in a symbolic run. Numbers stand for expressions, equal numbers for equal expressions.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringreduce {

class Expressions {
 public:
  static constexpr int undefined = -1;

  // `commute`: whether a + b equals b + a.
  Expressions(int world, int chunks, bool commute)
      : world_(world), leaves_(world * chunks), commute_(commute) {}

  // The value of a rank's chunk before the first round.
  int leaf(int chunk, int rank) const { return chunk * world_ + rank; }

  // a + b; (a + b) + c and a + (b + c) differ, as they do for floating-point numbers.
  int sum(int a, int b) { return commute_ && b < a ? node(b, a) : node(a, b); }

  // The result of one combination: a sum of any number of operands, rounded once to the element's type. Sums
  // that were rounded in between are other expressions, because the bits of 16- and 8-bit floats can differ.
  int rounded(int value) { return node(value, rounding); }

  // The same, divided by the world before it is rounded, as in an average.
  int divided(int value) { return node(value, division); }

  // The result that reproducible collectives guarantee: the first ranks' values of a chunk added in rank
  // order, ((r0 + r1) + r2) + ..., in one combination. `divide`: as an average of several ranks is.
  int in_rank_order(int chunk, int ranks, bool divide);

  // Whether it adds the first ranks' values of a chunk from left to right, in any grouping.
  bool is_in_order(int value, int chunk, int ranks) const;

  // Empty if the value is the sum of the first ranks' chunk, each exactly once, and divided exactly once at
  // the end if `divide` and if there are several ranks; otherwise the error.
  std::string why_incomplete(int value, int chunk, int ranks, bool divide);

 private:
  struct Node {
    int a = 0, b = 0;
  };
  static constexpr int division = -2, rounding = -3;  // as the second operand

  int node(int a, int b);
  const Node& at(int value) const { return nodes_[value - leaves_]; }
  std::vector<int> leaves_of(int value, int most) const;
  std::string compare_leaves(int value, int chunk, int ranks) const;

  int world_;
  int leaves_;
  bool commute_;
  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, int> number_of_;
  std::unordered_map<int, int> complete_for_;  // value -> last leaf: known to be correct
};

}  // namespace ringreduce
