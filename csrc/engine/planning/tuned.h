// The measurements of `ringreduce tune` on this machine: rows that come before the shipped ones.
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
  std::uint64_t digest = 0;  // of the file: ranks use their tables only if all digests are equal
  std::string note;          // appended to the reason of a choice that none of these rows made
  std::string file;
};

// The path of this machine's rows, in the user's cache, by version, kind of processor and number of cores.
// Empty if there is no cache folder.
std::string tuning_file();
// The rows of the file that RINGREDUCE_TUNING names, or of tuning_file(). Null if there are none or the
// variable is "off". Throws InvalidArgument with the wrong line.
std::shared_ptr<const Tuned> tuned_rows();

}  // namespace ringreduce
