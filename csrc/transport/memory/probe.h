// What an exchange between two cores costs at this moment, for benchmarks to print beside their figures.
#pragma once

#include <optional>

namespace ringreduce {

// Nanoseconds that a flag takes from one core to another, one way: the median over a few hundred short runs
// of two threads that pass it to and fro, each on a core of its own. Takes under 20 ms. Nothing where there
// is one core only, or where the threads cannot be bound or did not get to run side by side.
std::optional<double> probe_exchange();

}  // namespace ringreduce
