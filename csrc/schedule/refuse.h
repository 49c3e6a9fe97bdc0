// How the checker reports an error.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ringreduce {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw Refused(sentence.str());
}

inline std::string at(int rank, int round) {
  return "rank " + std::to_string(rank) + ", round " + std::to_string(round) + ": ";
}

}  // namespace ringreduce
