#include "gpu/kernels/flatten.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "engine/program/layout.h"
#include "engine/program/narrow.h"
#include "gpu/kernels/cuda/flat_program.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

using device::FlatLayout;
using device::FlatMove;
using device::FlatProgram;
using device::FlatStep;
using device::line;
using device::most_ranks;
using device::most_slots;

std::size_t in_lines(std::size_t bytes) {
  return (bytes + line - 1) / line * line;
}

static_assert(static_cast<int>(Memory::input) == 0 && static_cast<int>(Memory::temp) == 2);

std::uint8_t number_of(Memory memory) {
  return static_cast<std::uint8_t>(memory);
}

std::size_t message_bytes(const Geometry& geometry, std::size_t count) {
  return geometry.wire == Encoding::none ? count * geometry.element : encoded_bytes(geometry.wire, count);
}

class Flattening {
 public:
  Flattening(const Program& program, const Geometry& geometry)
      : program_(program), geometry_(geometry), wide_(in_lines(geometry.temp_bytes(program.schedule))) {
    sent_already_.resize(program.steps.size());
    for (const Step& step : program.steps) {
      if (step.fused >= 0) sent_already_[step.fused] = true;
    }
  }

  void add(std::size_t slice) {
    layout_.resolve(program_, geometry_, slice);
    FlatLayout flat_layout = {};
    flat_layout.first = slice;
    flat_layout.steps_begin = static_cast<std::int32_t>(steps_.size());
    if (converts()) convert(slice, Memory::input);
    for (const Action& action : layout_.actions()) add(action);
    if (converts()) convert(slice, Memory::output);
    flat_layout.steps_end = static_cast<std::int32_t>(steps_.size());
    layouts_.push_back(flat_layout);
  }

  std::vector<std::byte> in_one_piece() {
    FlatProgram head = {};
    head.rank = program_.schedule.rank;
    head.world = program_.schedule.world;
    head.slices = geometry_.slices;
    head.shift = geometry_.slice * (converts() ? entry_of(geometry_.narrow).element : geometry_.element);
    head.temp_bytes = wide_ + in_lines(geometry_.widened_bytes());
    std::size_t size = sizeof head;
    head.layouts = room_for(layouts_, size);
    head.layout_count = static_cast<std::int32_t>(layouts_.size());
    head.steps = room_for(steps_, size);
    head.moves = room_for(moves_, size);
    head.peers = room_for(program_.peers, size);
    std::vector<std::byte> all(size);
    std::memcpy(all.data(), &head, sizeof head);
    put(layouts_, all.data() + head.layouts);
    put(steps_, all.data() + head.steps);
    put(moves_, all.data() + head.moves);
    put(program_.peers, all.data() + head.peers);
    return all;
  }

 private:
  bool converts() const { return geometry_.narrow != Encoding::none; }

  // Steps between the conversions find the arrays' values in temporary memory.
  void place(Memory memory, std::size_t at, std::uint8_t& number, std::uint64_t& offset) const {
    const bool is_wide = converts() && memory != Memory::temp;
    number = number_of(is_wide ? Memory::temp : memory);
    offset = is_wide ? wide_ + at : at;
  }

  FlatMove flat(const Move& move) const {
    FlatMove flat = {};
    place(move.from, move.source, flat.from, flat.source);
    place(move.to, move.target, flat.to, flat.target);
    place(move.own_in, move.own, flat.own_in, flat.own);
    flat.bytes = move.bytes;
    flat.message_bytes = message_bytes(geometry_, move.count);
    flat.last = move.last;
    flat.keep = move.keep;
    flat.quantize = move.quantize;
    return flat;
  }

  void convert(std::size_t slice, Memory memory) {
    FlatStep step = {};
    step.kind = FlatStep::Kind::local;
    step.carried = -1;
    step.moves_begin = static_cast<std::int32_t>(moves_.size());
    each_narrow_run(geometry_, program_.schedule, slice, memory,
                    [&](std::size_t wide, std::size_t in_array, std::size_t count) {
                      FlatMove move = {};
                      move.source = memory == Memory::input ? in_array : wide_ + wide;
                      move.target = memory == Memory::input ? wide_ + wide : in_array;
                      move.from = number_of(memory == Memory::input ? memory : Memory::temp);
                      move.to = number_of(memory == Memory::input ? Memory::temp : memory);
                      move.bytes = count * geometry_.element;
                      moves_.push_back(move);
                    });
    step.moves_end = static_cast<std::int32_t>(moves_.size());
    steps_.push_back(step);
  }

  void add(const Action& action) {
    const auto index = static_cast<std::size_t>(action.step - program_.steps.data());
    FlatStep step = {};
    step.kind = action.step->kind;
    step.nothing = action.skip || sent_already_[index];
    step.carried = action.step->fused;
    if (converts() && step.carried >= 0) ++step.carried;  // behind the conversion
    step.peers_begin = static_cast<std::int32_t>(action.peers - program_.peers.data());
    step.peers_end = step.peers_begin + action.peer_count;
    step.moves_begin = static_cast<std::int32_t>(moves_.size());
    for (const Move* move = action.moves; move != action.moves_end; ++move) moves_.push_back(flat(*move));
    step.moves_end = static_cast<std::int32_t>(moves_.size());
    if (step.kind == FlatStep::Kind::send) step.bytes = action.bytes;
    steps_.push_back(step);
  }

  // Appends them after the bytes used so far, and returns where they begin.
  template <class T>
  static std::size_t room_for(const std::vector<T>& items, std::size_t& size) {
    const std::size_t begin = (size + 15) / 16 * 16;
    size = begin + items.size() * sizeof(T);
    return begin;
  }

  template <class T>
  static void put(const std::vector<T>& items, std::byte* at) {
    if (!items.empty()) std::memcpy(at, items.data(), items.size() * sizeof(T));
  }

  const Program& program_;
  const Geometry& geometry_;
  const std::size_t wide_;  // where temporary memory holds a slice's values as float32
  Layout layout_;
  std::vector<char> sent_already_;  // by step: an earlier one sends it
  std::vector<FlatLayout> layouts_;
  std::vector<FlatStep> steps_;
  std::vector<FlatMove> moves_;
};

// The slices that are not a copy of the one before, shifted by a slice's bytes: the first, the last, the one
// in which an uneven block ends, and the one after it. An empty block has a message in the first slice only.
std::set<std::size_t> slices_that_differ(const Geometry& geometry) {
  std::set<std::size_t> found = {0, geometry.slices - 1};
  for (const Extents* extents : {geometry.input, geometry.output}) {
    if (!extents) continue;
    for (const std::size_t count : extents->count) {
      const std::size_t end = count / geometry.slice;
      if (end < geometry.slices) found.insert(end);
      if (end + 1 < geometry.slices) found.insert(end + 1);
    }
  }
  return found;
}

// The messages of two rounds, which are sent on as they are made, must fit into a block's arena.
void check_arena(const Program& program, const Geometry& geometry, std::size_t arena_bytes) {
  std::size_t sends = 0;
  for (const Round& round : program.schedule.rounds) sends = std::max(sends, round.sends.size());
  const auto chunks = static_cast<std::size_t>(program.heaviest_round);
  const std::size_t round_bytes = chunks * message_bytes(geometry, geometry.stride()) + sends * line;
  if (2 * round_bytes <= arena_bytes && 2 * sends <= most_slots) return;
  throw InvalidArgument("blocks have " + std::to_string(arena_bytes) + " bytes and " +
                        std::to_string(most_slots) + " places for messages, but the " +
                        std::to_string(sends) + " messages of a round take up to " +
                        std::to_string(round_bytes) + " bytes");
}

}  // namespace

// Messages begin at lines.
std::size_t arena_capacity(std::size_t arena_bytes) {
  const std::size_t lines = std::size_t{most_slots} * line;
  return arena_bytes > 2 * lines ? arena_bytes - lines : arena_bytes / 2;
}

std::vector<std::byte> flatten(const Program& program, const Geometry& geometry, std::size_t arena_bytes) {
  if (program.schedule.world > most_ranks) {
    throw InvalidArgument("a kernel serves at most " + std::to_string(most_ranks) + " ranks, not " +
                          std::to_string(program.schedule.world));
  }
  check_arena(program, geometry, arena_bytes);
  Flattening flattening(program, geometry);
  for (const std::size_t slice : slices_that_differ(geometry)) flattening.add(slice);
  return flattening.in_one_piece();
}

}  // namespace ringreduce
