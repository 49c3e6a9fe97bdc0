// All-reduces made for a network: for large buffers along the trees that its links allow, for small ones
// whatever takes few rounds, by the simulator's prediction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/network.h"
#include "synthesis/packing.h"

namespace ringreduce {

// One way of doing it.
struct Way {
  std::string_view algorithm;  // of the catalogue
  std::size_t slice_bytes = 0;
  int lanes = 1;
  int forest = -1;     // "synthesised": which one
  double seconds = 0;  // predicted
};

class Synthesis {
 public:
  // `groups` and `order` as a Place has them.
  Synthesis(Network network, std::vector<int> groups, std::vector<int> order);

  const Network& network() const { return network_; }
  const Packing& packing() const { return packing_; }
  double seconds() const { return seconds_; }  // that the packing took
  // Of the trees: what ranks can compare.
  std::uint64_t digest() const;
  // For a forest's schedule, or -1.
  Place place(int rank, int forest) const;

  // The fastest way, for buffers of so many bytes. `usual` is what is taken if nothing is faster: of the
  // catalogue's algorithms that have few rounds or few bytes, and of the forests. Throws std::logic_error if
  // the checker refuses what it has made.
  Way fastest(std::size_t bytes, Way usual) const;

 private:
  double predict(std::size_t bytes, const Way& way) const;
  void prove(int forest) const;

  Network network_;
  std::vector<int> groups_, order_;
  Packing packing_;
  std::vector<std::vector<Tree>> trees_;  // by forest, of ranks
  double seconds_ = 0;
};

}  // namespace ringreduce
