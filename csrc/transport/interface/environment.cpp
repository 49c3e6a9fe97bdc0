#include "transport/interface/environment.h"

#include <algorithm>
#include <cstdlib>

#include "transport/interface/errors.h"

namespace ringreduce {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string environment(const char* name, std::initializer_list<std::string_view> values) {
  const std::string value = environment(name);
  if (value.empty() || std::find(values.begin(), values.end(), value) != values.end()) return value;
  std::string text = std::string(name) + " must be ";
  for (const std::string_view& one : values) {
    if (&one != values.begin()) text += &one + 1 == values.end() ? " or " : ", ";
    text += one;
  }
  throw InvalidArgument(text + ", not '" + value + "'");
}

}  // namespace ringreduce
