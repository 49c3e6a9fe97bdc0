// What `ringreduce tune` has measured on this machine: rows that come before the shipped ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/planning/tuning.h"

namespace ringreduce {

struct Tuned {
  struct Row {
    Tuning tuning;
    TuningRow row;
  };
  std::vector<Row> rows;
  std::uint64_t digest = 0;  // of the file: ranks use their tables only if all have the same
  std::string note;          // for the reason of a choice that none of these rows has made
  std::string file;
};

// Where this machine's rows are kept, in the user's cache: by version, kind of processor and number of cores.
// Empty where there is no place.
std::string tuning_file();
// The rows of RINGREDUCE_TUNING, a file or "off", or else of tuning_file(); null where there are none. Throws
// InvalidArgument with the line that is wrong.
std::shared_ptr<const Tuned> tuned_rows();

}  // namespace ringreduce
