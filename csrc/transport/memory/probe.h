// The current cost of an exchange between two cores, which benchmarks print beside their figures.
#pragma once

#include <optional>

namespace ringreduce {

// The nanoseconds that a flag takes from one core to another, one way: the median of a few hundred short
// runs, in which two threads on different cores pass it back and forth. Takes under 20 ms. nullopt if there
// is only one core, or the threads cannot be bound or did not run side by side.
std::optional<double> probe_exchange();

}  // namespace ringreduce
