#include "engine/gpu/hosts/subgroup.h"

#include <string>

namespace ringreduce {
namespace {

constexpr std::chrono::milliseconds patience{500};

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

Failure Subgroup::in_all(const Failure& failure) const {
  const int found = failure.culprit;
  const bool is_member = found >= 0 && found < static_cast<int>(members_.size());
  std::string text = failure.what();
  if (is_member && members_[found] != found) {
    text = "in the group of ranks " + listed(members_) + ", which are numbered from 0 here: " + text;
  }
  return {failure.cause, is_member ? members_[found] : found, text};
}

void Subgroup::pass_on(const Failure& failure) {
  if (!failed_) failed_ = Clock::now();
  if (Clock::now() - *failed_ >= patience) throw in_all(failure);
}

}  // namespace ringreduce
