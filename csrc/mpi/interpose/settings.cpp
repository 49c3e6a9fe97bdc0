#include "mpi/interpose/settings.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ringreduce::mpi {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A program is not ended for the sake of a variable that is spelt wrongly.
Settings::Mode read_mode() {
  const std::string_view value = environment("RINGREDUCE_MPI");
  if (value == "off" || value == "0") return Settings::Mode::off;
  if (value == "all") return Settings::Mode::all;
  if (value != "" && value != "auto" && value != "1") {
    std::fprintf(stderr, "ringreduce: RINGREDUCE_MPI must be auto, all or off, not '%s': it is off\n",
                 std::string(value).c_str());
    return Settings::Mode::off;
  }
  return Settings::Mode::measured;
}

Settings::Count read_count() {
  const std::string_view value = environment("RINGREDUCE_MPI_COUNT");
  if (value == "" || value == "0") return Settings::Count::none;
  return value == "all" ? Settings::Count::all_ranks : Settings::Count::first_rank;
}

}  // namespace

const Settings& settings() {
  static const Settings read{read_mode(), read_count()};
  return read;
}

}  // namespace ringreduce::mpi
