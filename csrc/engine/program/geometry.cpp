#include "engine/program/geometry.h"

#include <string>

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr std::size_t line_bytes = 64;

std::size_t divide_up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}
std::size_t round_up(std::size_t a, std::size_t to) {
  return divide_up(a, to) * to;
}

}  // namespace

Geometry make_geometry(const Program& program, std::size_t element, std::size_t count, std::size_t target,
                       std::size_t capacity, Encoding wire) {
  Geometry g;
  g.whole = !has_blocks(program.schedule.collective);
  g.element = element;
  g.wire = wire;
  g.count = count;
  g.chunks = std::max(program.schedule.chunks, 1);
  const std::size_t line = std::max(line_bytes / element, encoded_unit(wire));  // elements
  const std::size_t line_sent =
      round_up(wire == Encoding::none ? line * element : encoded_bytes(wire, line), line_bytes);
  const std::size_t sent = std::max(program.heaviest_round, 1);
  // Half of the capacity, so that a round fits behind the remains of the one before, wherever the ring wraps;
  // less what rounding each chunk up to a line may add.
  const std::size_t room = capacity / 2 / sent / line_sent;
  if (wire != Encoding::none && room == 0) {
    throw InvalidArgument(
        std::string("wire '") + name_of(wire) + "' takes only algorithms in which a rank sends at most " +
        std::to_string(capacity / 2 / line_sent) + " blocks at once, not " + std::to_string(sent));
  }
  if (element > line_bytes && room == 0) {
    throw InvalidArgument("elements have " + std::to_string(element) +
                          " bytes, but a rank's messages of a round, " + std::to_string(sent) +
                          " elements at least, may have " + std::to_string(capacity / 2));
  }
  const std::size_t limit = std::max(std::min(target / sent / (line * element), room), std::size_t{1}) * line;
  if (g.whole) {
    const std::size_t most = limit * g.chunks;  // elements of the buffer in one slice
    g.slices = std::max(divide_up(count, most), std::size_t{1});
    g.chunk = round_up(std::max(divide_up(divide_up(count, g.slices), g.chunks), std::size_t{1}), line);
    g.slice = g.slices == 1 ? count : g.chunk * g.chunks;
    if (g.slices > 1) g.slices = divide_up(count, g.slice);
  } else {
    g.slices = std::max(divide_up(count, limit), std::size_t{1});
    g.slice = g.slices == 1 ? count : round_up(divide_up(count, g.slices), line);
    if (g.slices > 1) g.slices = divide_up(count, g.slice);
  }
  return g;
}

}  // namespace ringreduce
