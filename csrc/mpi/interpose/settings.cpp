#include "mpi/interpose/settings.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ringreduce::mpi {
namespace {

// A misspelt variable must not end the program.
Mode read_mode() {
  const char* set = std::getenv("RINGREDUCE_MPI");
  const std::string_view value = set ? set : "";
  if (value == "off" || value == "0") return Mode::off;
  if (value == "all") return Mode::all;
  if (value == "" || value == "auto" || value == "1") return Mode::measured;
  std::fprintf(stderr, "ringreduce: RINGREDUCE_MPI must be auto, all or off, not '%s'; using off\n", set);
  return Mode::off;
}

}  // namespace

Mode mode() {
  static const Mode read = read_mode();
  return read;
}

}  // namespace ringreduce::mpi
