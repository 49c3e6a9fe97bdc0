#include "schedule/expressions.h"

#include <algorithm>

namespace ringreduce {

int Expressions::node(int a, int b) {
  const std::uint64_t key =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(a)) << 32 | static_cast<std::uint32_t>(b);
  const auto [place, is_new] = number_of_.try_emplace(key, leaves_ + static_cast<int>(nodes_.size()));
  if (is_new) nodes_.push_back({a, b});
  return place->second;
}

int Expressions::in_rank_order(int chunk, int ranks, bool divide) {
  int total = leaf(chunk, 0);
  for (int rank = 1; rank < ranks; ++rank) total = sum(total, leaf(chunk, rank));
  return ranks == 1 ? total : divide ? divided(total) : rounded(total);
}

// From left to right; stops after `most`.
std::vector<int> Expressions::leaves_of(int value, int most) const {
  std::vector<int> leaves, open = {value};
  while (!open.empty() && static_cast<int>(leaves.size()) < most) {
    const int next = open.back();
    open.pop_back();
    if (next < leaves_) {
      leaves.push_back(next);
      continue;
    }
    if (at(next).b >= 0) open.push_back(at(next).b);
    open.push_back(at(next).a);
  }
  return leaves;
}

bool Expressions::is_in_order(int value, int chunk, int ranks) const {
  const std::vector<int> leaves = leaves_of(value, ranks + 1);
  if (static_cast<int>(leaves.size()) != ranks) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (leaves[rank] != leaf(chunk, rank)) return false;
  }
  return true;
}

std::string Expressions::why_incomplete(int value, int chunk, int ranks, bool divide) {
  const int last = leaf(chunk, ranks - 1);
  const auto known = complete_for_.find(value);
  if (known != complete_for_.end() && known->second == last) return "";
  divide = divide && ranks > 1;
  int total = value;
  if (divide && value >= leaves_ && at(value).b == division) total = at(value).a;
  const std::string wrong = compare_leaves(total, chunk, ranks);
  if (!wrong.empty()) return wrong;
  if (divide && total == value) {
    return "is complete before its last write, so an average would not be divided, or not on all ranks";
  }
  complete_for_[value] = last;
  return "";
}

std::string Expressions::compare_leaves(int value, int chunk, int ranks) const {
  std::vector<int> times(world_), open = {value};
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (next >= leaves_) {
      if (at(next).b == division) return "holds a sum that an average would divide too early";
      open.push_back(at(next).a);
      if (at(next).b != rounding) open.push_back(at(next).b);
      continue;
    }
    const int from = next % world_;
    if (next / world_ != chunk)
      return "holds chunk " + std::to_string(next / world_) + " of rank " + std::to_string(from);
    // Stopping here also bounds the walk, which sees no rank twice.
    if (++times[from] > 1)
      return "holds the contribution of rank " + std::to_string(from) + " more than once";
    if (from >= ranks) return "holds the contribution of rank " + std::to_string(from) + ", a later one";
  }
  const auto missing = std::find(times.begin(), times.begin() + ranks, 0) - times.begin();
  return missing == ranks ? "" : "lacks the contribution of rank " + std::to_string(missing);
}

}  // namespace ringreduce
