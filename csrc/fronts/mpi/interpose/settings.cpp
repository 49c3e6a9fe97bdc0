#include "fronts/mpi/interpose/settings.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "fronts/shared/group.h"

namespace ringreduce::mpi {
namespace {

// A misspelt variable must not end the program.
Mode read_mode() {
  const char* set = std::getenv("RINGREDUCE_MPI");
  const std::string_view value = set ? set : "";
  if (value == "off" || value == "0") return Mode::off;
  if (value == "all") return Mode::all;
  if (value == "" || value == "auto" || value == "1") return Mode::measured;
  const std::string text =
      "ringreduce: RINGREDUCE_MPI must be auto, all or off, not '" + std::string(value) + "'; using off\n";
  write_to_stderr(text.c_str());
  return Mode::off;
}

}  // namespace

Mode mode() {
  static const Mode read = read_mode();
  return read;
}

bool names_algorithms() {
  static const bool set = std::getenv("RINGREDUCE_ALGORITHM") != nullptr;
  return set;
}

}  // namespace ringreduce::mpi
