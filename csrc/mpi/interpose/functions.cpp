#include "mpi/interpose/functions.h"

#include <atomic>
#include <cstdio>

#include "mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

constexpr const char* names[function_count] = {
    "allreduce", "reduce",     "reduce_scatter", "reduce_scatter_block",
    "allgather", "allgatherv", "bcast",          "barrier",
};
constexpr int form_count = 4;

struct Tally {
  std::atomic<std::uint64_t> served{0}, handed_on{0};
};

Tally tallies[function_count][form_count];

int index_of(Form form) {
  return (form.nonblocking ? 1 : 0) + (form.large ? 2 : 0);
}

}  // namespace

std::string name_of(Function function, Form form) {
  std::string name = names[static_cast<int>(function)];
  if (form.nonblocking) {
    name = "I" + name;
  } else {
    name[0] = static_cast<char>(name[0] - 'a' + 'A');
  }
  return "MPI_" + name + (form.large ? "_c" : "");
}

void count(Function function, Form form, bool served) {
  if (settings().count == Settings::Count::none) return;
  Tally& found = tallies[static_cast<int>(function)][index_of(form)];
  (served ? found.served : found.handed_on).fetch_add(1, std::memory_order_relaxed);
}

void report_counts(int rank) {
  const auto wanted = settings().count;
  if (wanted == Settings::Count::none || (wanted == Settings::Count::first_rank && rank != 0)) return;
  std::string text;
  for (int function = 0; function < function_count; ++function) {
    for (const Form form : {blocking, nonblocking, large, large_nonblocking}) {
      const Tally& found = tallies[function][index_of(form)];
      if (found.served + found.handed_on == 0) continue;
      text += "ringreduce: rank " + std::to_string(rank) + ": " +
              name_of(static_cast<Function>(function), form) + ": " + std::to_string(found.served) +
              " served, " + std::to_string(found.handed_on) + " handed on\n";
    }
  }
  std::fputs(text.c_str(), stderr);  // in one go: other ranks write too
}

}  // namespace ringreduce::mpi
