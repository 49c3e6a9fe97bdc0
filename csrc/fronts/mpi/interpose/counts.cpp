#include "fronts/mpi/interpose/counts.h"

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "fronts/shared/group.h"

namespace ringreduce::mpi {
namespace {

enum class Speakers : std::uint8_t { none, first_rank, all_ranks };

Speakers speakers() {
  static const Speakers as_set = [] {
    const char* set = std::getenv("RINGREDUCE_MPI_COUNT");
    const std::string_view value = set ? set : "";
    if (value == "" || value == "0") return Speakers::none;
    return value == "all" ? Speakers::all_ranks : Speakers::first_rank;
  }();
  return as_set;
}

struct Tally {
  std::uint64_t served = 0, handed_on = 0;
};
struct Tallies {
  std::mutex mutex;
  std::map<std::string_view, Tally> by_function;
};

// Never destroyed, because other libraries may still call MPI when the process ends.
Tallies& tallies() {
  static Tallies& all = *new Tallies;
  return all;
}

}  // namespace

void count(const char* function, bool served) {
  if (speakers() == Speakers::none) return;
  const std::lock_guard lock(tallies().mutex);
  Tally& tally = tallies().by_function[function];
  ++(served ? tally.served : tally.handed_on);
}

void report_counts(int rank) {
  if (speakers() == Speakers::none || (speakers() == Speakers::first_rank && rank != 0)) return;
  std::string text;
  const std::lock_guard lock(tallies().mutex);
  for (const auto& [function, tally] : tallies().by_function) {
    text += "ringreduce: rank " + std::to_string(rank) + ": " + std::string(function) + ": " +
            std::to_string(tally.served) + " served, " + std::to_string(tally.handed_on) + " handed on\n";
  }
  write_to_stderr(text.c_str());  // in one piece, because other ranks write too
}

}  // namespace ringreduce::mpi
