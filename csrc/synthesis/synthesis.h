// All-reduces made for a network: along the trees that its links allow for large buffers, with few rounds for
// small ones, as the simulator predicts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/network.h"
#include "synthesis/packing.h"

namespace ringreduce {

// One way to run it.
struct Way {
  std::string_view algorithm;  // in the catalogue
  std::size_t slice_bytes = 0;
  int lanes = 1;
  int forest = -1;     // of "synthesised": the forest's number
  double seconds = 0;  // predicted
};

class Synthesis {
 public:
  // `groups` and `order` as in Place.
  Synthesis(Network network, std::vector<int> groups, std::vector<int> order);

  const Network& network() const { return network_; }
  const Packing& packing() const { return packing_; }
  double seconds() const { return seconds_; }  // spent on the packing
  // A digest of the trees, which ranks can compare.
  std::uint64_t digest() const;
  // For a forest's schedule; -1: none.
  Place place(int rank, int forest) const;

  // The fastest way for buffers of this size: `usual`, an algorithm of the catalogue with few rounds or few
  // bytes, or a forest. Returns `usual` if nothing is faster. Throws std::logic_error if the checker refuses
  // its schedule.
  Way fastest(std::size_t bytes, Way usual) const;

 private:
  double predict(std::size_t bytes, const Way& way) const;
  void prove(int forest) const;

  Network network_;
  std::vector<int> groups_, order_;
  Packing packing_;
  std::vector<std::vector<Tree>> trees_;  // by forest, between ranks
  double seconds_ = 0;
};

}  // namespace ringreduce
