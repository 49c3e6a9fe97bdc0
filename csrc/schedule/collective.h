// The collectives. Every fact that other layers ask of one stands in this table: a new collective is a line
// here, its schedules (algorithms.h, catalogue.cpp) and its method.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ringreduce {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  scan,
  exscan,
  barrier,
};

// What a rank's array holds before a collective, or after it.
enum class Holds : std::uint8_t {
  nothing,
  whole,       // the whole buffer, on every rank
  on_root,     // the whole buffer, on the root alone
  own_block,   // this rank's block of the buffer
  exchanged,   // a block for each rank, or from each
  up_to_own,   // the whole buffer, combined from the ranks up to this one
  before_own,  // the same from the ranks before this one; rank 0 has none
};

// The bytes that count as bandwidth of the bus, in sizes of the whole buffer, as nccl-tests define them.
enum class BusBytes : std::uint8_t {
  once,          // 1
  others,        // (n - 1) / n
  twice_others,  // 2 (n - 1) / n
};

struct CollectiveFacts {
  std::string_view name;
  bool reduces;  // combines values
  Holds before;
  Holds after;
  BusBytes bus;
};

// In the order of Collective.
inline constexpr std::array collective_facts{
    CollectiveFacts{"all_reduce", true, Holds::whole, Holds::whole, BusBytes::twice_others},
    CollectiveFacts{"reduce_scatter", true, Holds::whole, Holds::own_block, BusBytes::others},
    CollectiveFacts{"all_gather", false, Holds::own_block, Holds::whole, BusBytes::others},
    CollectiveFacts{"broadcast", false, Holds::on_root, Holds::whole, BusBytes::once},
    CollectiveFacts{"reduce", true, Holds::whole, Holds::on_root, BusBytes::once},
    CollectiveFacts{"gather", false, Holds::own_block, Holds::on_root, BusBytes::others},
    CollectiveFacts{"scatter", false, Holds::on_root, Holds::own_block, BusBytes::others},
    CollectiveFacts{"all_to_all", false, Holds::exchanged, Holds::exchanged, BusBytes::others},
    CollectiveFacts{"scan", true, Holds::whole, Holds::up_to_own, BusBytes::once},
    CollectiveFacts{"exscan", true, Holds::whole, Holds::before_own, BusBytes::once},
    CollectiveFacts{"barrier", false, Holds::nothing, Holds::nothing, BusBytes::others},
};
inline constexpr int collective_count = static_cast<int>(collective_facts.size());

constexpr const CollectiveFacts& facts_of(Collective collective) {
  return collective_facts[static_cast<std::size_t>(collective)];
}

constexpr const char* name_of(Collective collective) {
  return facts_of(collective).name.data();
}
// Whether it combines values.
constexpr bool reduces(Collective collective) {
  return facts_of(collective).reduces;
}
constexpr Holds contents(Collective collective, bool before) {
  return before ? facts_of(collective).before : facts_of(collective).after;
}
constexpr bool rooted(Collective collective) {
  return contents(collective, true) == Holds::on_root || contents(collective, false) == Holds::on_root;
}
// How many ranks, from rank 0 on, contribute to this rank's result.
constexpr int contributors(Collective collective, int rank, int world) {
  const Holds after = contents(collective, false);
  return after == Holds::up_to_own ? rank + 1 : after == Holds::before_own ? rank : world;
}
// Whether every result combines the values of all ranks, so that there is an average.
constexpr bool combines_all(Collective collective) {
  return reduces(collective) && contributors(collective, 0, 2) == 2;
}
// Whether all ranks end with the same values.
constexpr bool ends_alike(Collective collective) {
  return contents(collective, false) == Holds::whole;
}
// Whether the buffer consists of a block for each rank. The engine cuts slices from every block; if there are
// none, from the whole buffer, and divides each slice into the schedule's chunks.
constexpr bool has_blocks(Collective collective) {
  return contents(collective, true) == Holds::own_block || contents(collective, false) == Holds::own_block ||
         contents(collective, true) == Holds::exchanged;
}
// Whether a rank gives an input (before), or takes a result.
constexpr bool has_array(Collective collective, bool before, bool is_root) {
  const Holds what = contents(collective, before);
  return what == Holds::on_root ? is_root : what != Holds::nothing;
}

}  // namespace ringreduce
