// Types, operators and errors of a framework, in tables in the order of ours.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>

namespace ringreduce {

// Our value that corresponds to `theirs`.
template <class Enum, class Theirs, std::size_t n>
std::optional<Enum> same(const Theirs (&all)[n], Theirs theirs) {
  const auto* const found = std::find(std::begin(all), std::end(all), theirs);
  return found == std::end(all) ? std::nullopt : std::optional(static_cast<Enum>(found - all));
}

}  // namespace ringreduce
