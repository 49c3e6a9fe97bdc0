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

int Expressions::in_rank_order(int chunk) {
  int total = leaf(chunk, 0);
  for (int rank = 1; rank < world_; ++rank) total = sum(total, leaf(chunk, rank));
  return world_ > 1 ? divided(total) : total;
}

std::string Expressions::why_incomplete(int value, int chunk) {
  const auto known = complete_for_.find(value);
  if (known != complete_for_.end() && known->second == chunk) return "";
  int total = value;
  if (world_ > 1 && value >= leaves_ && at(value).b == division) total = at(value).a;
  const std::string wrong = compare_leaves(total, chunk);
  if (!wrong.empty()) return wrong;
  if (world_ > 1 && total == value) {
    return "is complete before its last write, so an average would not be divided, or not on all ranks";
  }
  complete_for_[value] = chunk;
  return "";
}

std::string Expressions::compare_leaves(int value, int chunk) const {
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
  }
  const auto missing = std::find(times.begin(), times.end(), 0);
  if (missing == times.end()) return "";
  return "lacks the contribution of rank " + std::to_string(missing - times.begin());
}

}  // namespace ringreduce
