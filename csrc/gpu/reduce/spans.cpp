#include "gpu/reduce/spans.h"

#include <stdexcept>
#include <string>

namespace ringreduce::device {
namespace {

void check_number(int number, const char* what) {
  if (number >= 1 && number <= most_spans) return;
  throw std::invalid_argument(std::to_string(number) + " " + what + ", but there must be 1 to " +
                              std::to_string(most_spans));
}

}  // namespace

Spans make_spans(void* const* destinations, int destination_count, const void* const* sources,
                 int source_count, std::size_t count, double factor) {
  check_number(destination_count, "destinations");
  check_number(source_count, "sources");
  Spans spans = {};
  for (int d = 0; d < destination_count; ++d) spans.destinations[d] = static_cast<char*>(destinations[d]);
  for (int s = 0; s < source_count; ++s) spans.sources[s] = static_cast<const char*>(sources[s]);
  spans.destination_count = destination_count;
  spans.source_count = source_count;
  spans.count = count;
  spans.scale = scale_of(factor);
  return spans;
}

void refuse(DType dtype, Op op) {
  throw std::invalid_argument(std::string(name_of(op)) + " is not defined for dtype " + name_of(dtype));
}

void refuse(Encoding wire, DType plain, Op op) {
  throw std::invalid_argument(std::string(name_of(wire)) + " does not support " + name_of(op) + " of " +
                              name_of(plain));
}

}  // namespace ringreduce::device
