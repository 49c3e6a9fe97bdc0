// The engine's failures as torch's.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "front/group.h"

namespace ringreduce::torch_backend {

// What messages call the ranks of a group by. Empty: the group's ranks are the global ones.
using GlobalRanks = std::vector<std::uint64_t>;

// Throws what torch expects: RuntimeError for what was refused, DistBackendError for what the ranks cannot
// recover from, and what a signal's handler has raised.
[[noreturn]] void raise(const Trouble& trouble, const GlobalRanks& ranks);

// The same as a value; null for none, and what is no Trouble stays as it is.
std::exception_ptr as_torch(std::exception_ptr problem, const GlobalRanks& ranks);

// Throws what a signal's handler has raised in this thread, if any.
void raise_if_interrupted();

// Runs something of the engine's.
template <typename Function>
auto translated(const GlobalRanks& ranks, Function function) {
  try {
    return function();
  } catch (const Trouble& trouble) {
    raise(trouble, ranks);
  }
}

}  // namespace ringreduce::torch_backend
