// Converts the engine's failures to torch's.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "fronts/shared/group.h"

namespace ringreduce::torch_backend {

// The ranks' names in errors. Empty: the group's ranks are the global ones.
using GlobalRanks = std::vector<std::uint64_t>;

// Throws what torch expects: RuntimeError for refusals, DistBackendError for failures that the ranks cannot
// recover from, and a signal handler's exception.
[[noreturn]] void raise(const Trouble& trouble, const GlobalRanks& ranks);

// The same as a value; null stays null, and anything but a Trouble is unchanged.
std::exception_ptr as_torch(std::exception_ptr problem, const GlobalRanks& ranks);

// Throws what a signal handler has raised in this thread, if anything.
void raise_if_interrupted();

// Runs a function of the engine, and converts its failures.
template <typename Function>
auto translated(const GlobalRanks& ranks, Function function) {
  try {
    return function();
  } catch (const Trouble& trouble) {
    raise(trouble, ranks);
  }
}

}  // namespace ringreduce::torch_backend
