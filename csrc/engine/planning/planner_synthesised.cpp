// The planner's handling of algorithm "synthesised".
#include <algorithm>
#include <bit>

#include "engine/planning/planner.h"

namespace ringreduce {

bool Planner::is_forced(Collective collective, std::string_view algorithm) const {
  const auto found = forced_.find(collective);
  return found != forced_.end() && catalogue()[found->second].name == algorithm;
}

void Planner::synthesise(Network network) {
  synthesis_ = std::make_unique<Synthesis>(std::move(network), hosts_, order_);
  forget();
}

// The usual choice if the network is unknown or does not matter.
Choice Planner::synthesised_choice(const Situation& here, const Target& target, Plan& plan) {
  if (!synthesis_ || !target.uses_links() || here.collective != Collective::all_reduce) {
    return usual_choice(here);
  }
  const Way way = synthesised(here.bytes);
  plan.forest = way.forest;
  if (way.forest >= 0) plan.variant = synthesis_->digest() + static_cast<std::uint64_t>(way.forest);
  return {find_algorithm(here.collective, way.algorithm), way.slice_bytes, way.lanes};
}

Way Planner::synthesised(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 1));
  const auto [found, is_new] = ways_.try_emplace(size);
  if (is_new) {
    const Choice usual = usual_choice(situation(Collective::all_reduce, size, Encoding::none, cpu_));
    found->second = {usual.entry->name, usual.slice_bytes, usual.lanes};
    if (synthesis_) found->second = synthesis_->fastest(size, found->second);
  }
  return found->second;
}

}  // namespace ringreduce
