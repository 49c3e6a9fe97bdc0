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

using device::FlatBatch;
using device::FlatLayout;
using device::FlatMessage;
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

bool overlap(const Span& one, const Span& other) {
  return one.first < other.first + other.count && other.first < one.first + one.count;
}

// Whether the first step after `index`, but for the send of its result, that uses the only part of a step
// replaces it. The part then need not be kept, even if it is in the output.
bool is_replaced(const Program& program, std::size_t index) {
  const Step& step = program.steps[index];
  const Span& chunks = program.parts[step.parts_begin].chunks;
  for (std::size_t i = index + 1; i < program.steps.size(); ++i) {
    const Step& next = program.steps[i];
    if (static_cast<int>(i) == step.fused) continue;
    const int end = next.is_local() ? next.from_begin + (next.parts_end - next.parts_begin) : next.parts_end;
    for (int p = next.parts_begin; p < end; ++p) {
      if (!overlap(program.parts[p].chunks, chunks)) continue;
      return next.kind == StepKind::receive && program.parts[p].chunks == chunks;
    }
  }
  return false;
}

// The bytes of a rank's memory that a step reads or writes. Input and output may be the same memory.
struct Range {
  bool is_temp;
  std::size_t begin, end;

  bool overlaps(const Range& other) const {
    return is_temp == other.is_temp && begin < other.end && other.begin < end;
  }
};
using Ranges = std::vector<Range>;

Range range_of(std::uint8_t memory, std::size_t at, std::size_t bytes) {
  return {memory == number_of(Memory::temp), at, at + bytes};
}

bool overlap(const Ranges& some, const Ranges& others) {
  return std::any_of(some.begin(), some.end(), [&](const Range& one) {
    return std::any_of(others.begin(), others.end(), [&](const Range& other) { return one.overlaps(other); });
  });
}

// Steps that the threads of a block may run without meeting in between.
class Batching {
 public:
  // Whether the step runs together with those before it; otherwise it begins a new batch.
  bool joins(StepKind kind, int round, const FlatMove* move, const FlatMove* end) {
    const bool is_send = kind == StepKind::send;
    const bool is_local = kind == StepKind::local || kind == StepKind::local_combine;
    Ranges reads, writes;
    for (; move != end; ++move) {
      if (kind != StepKind::receive) reads.push_back(range_of(move->from, move->source, move->bytes));
      if (kind == StepKind::local_combine) reads.push_back(range_of(move->own_in, move->own, move->bytes));
      if (!is_send || move->quantize) writes.push_back(range_of(move->to, move->target, move->bytes));
    }
    const int now[] = {round, is_send, is_local};
    const bool together = std::equal(now, now + 3, like_) && !overlap(reads, writes_) &&
                          !overlap(writes, reads_) && !overlap(writes, writes_);
    if (!together) *this = Batching();
    std::copy(now, now + 3, like_);
    reads_.insert(reads_.end(), reads.begin(), reads.end());
    writes_.insert(writes_.end(), writes.begin(), writes.end());
    return together;
  }

 private:
  int like_[3] = {-1};  // the round, and the kinds
  Ranges reads_, writes_;
};

class Flattening {
 public:
  Flattening(const Program& program, const Geometry& geometry)
      : program_(program),
        geometry_(geometry),
        wide_(program.uses_temp ? in_lines(geometry.temp_bytes(program.schedule)) : 0) {
    sent_already_.resize(program.steps.size());
    for (const Step& step : program.steps) {
      if (step.fused >= 0) sent_already_[step.fused] = true;
    }
  }

  void add(std::size_t slice) {
    layout_.resolve(program_, geometry_, slice);
    batching_ = Batching();
    batches_.clear(), messages_.clear(), steps_.clear(), moves_.clear(), sources_.clear();
    if (converts()) convert(slice, Memory::input);
    for (const Action& action : layout_.actions()) add(action);
    if (converts()) convert(slice, Memory::output);
    FlatLayout flat = {};
    flat.first = slice;
    flat.at = pieces_.size();
    flat.batches = count_of(batches_);
    append(batches_, flat);
    flat.messages = append(messages_, flat);
    flat.steps = append(steps_, flat);
    flat.moves = append(moves_, flat);
    flat.sources = append(sources_, flat);
    flat.receivers = append(program_.peers, flat);
    flat.bytes = pieces_.size() - flat.at;
    layouts_.push_back(flat);
  }

  std::vector<std::byte> in_one_piece() {
    FlatProgram head = {};
    head.rank = program_.schedule.rank;
    head.world = program_.schedule.world;
    head.slices = geometry_.slices;
    head.shift = geometry_.slice * (converts() ? entry_of(geometry_.narrow).element : geometry_.element);
    head.temp_bytes = wide_ + in_lines(geometry_.widened_bytes());
    head.layout_count = count_of(layouts_);
    const std::size_t layouts_bytes = layouts_.size() * sizeof(FlatLayout);
    const std::size_t before = in_words(sizeof head + layouts_bytes);
    for (FlatLayout& layout : layouts_) layout.at += before;
    std::vector<std::byte> all(before + pieces_.size());
    std::memcpy(all.data(), &head, sizeof head);
    std::memcpy(all.data() + sizeof head, layouts_.data(), layouts_bytes);
    std::copy(pieces_.begin(), pieces_.end(), all.begin() + static_cast<std::ptrdiff_t>(before));
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
    flat.last = move.last;
    flat.keep = move.keep;
    flat.quantize = move.quantize;
    return flat;
  }

  void convert(std::size_t slice, Memory memory) {
    FlatStep step = {};
    step.kind = FlatStep::Kind::local;
    step.sources_begin = step.sources_end = count_of(sources_);
    const std::size_t first = moves_.size();
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
    add(step, first, memory == Memory::input ? before_all : after_all, nullptr);
  }

  void add(const Action& action) {
    const auto index = static_cast<std::size_t>(action.step - program_.steps.data());
    if (action.skip || sent_already_[index]) return;
    FlatStep step = {};
    step.kind = action.step->kind;
    const bool is_send = step.kind == FlatStep::Kind::send;
    const std::size_t first = moves_.size();
    std::uint64_t in_message = 0;
    for (const Move& move : action.runs()) {
      moves_.push_back(flat(move));
      moves_.back().in_message = in_message;
      in_message += message_bytes(geometry_, move.count);
    }
    step.sources_begin = count_of(sources_);
    if (!is_send) sources_.insert(sources_.end(), action.peers, action.peers + action.peer_count);
    step.sources_end = count_of(sources_);
    const int fused = action.step->fused;
    if (fused >= 0 && is_replaced(program_, index)) {
      std::for_each(moves_.begin() + static_cast<std::ptrdiff_t>(first), moves_.end(),
                    [](FlatMove& move) { move.keep = false; });
    }
    const Action* const sent = is_send ? &action : fused >= 0 ? &layout_.actions()[fused] : nullptr;
    add(step, first, action.step->round, sent);
  }

  // A step with the moves from `first` on, which writes the message of `sent`, if that is not null.
  void add(FlatStep step, std::size_t first, int round, const Action* sent) {
    const bool joins =
        batching_.joins(step.kind, round, moves_.data() + first, moves_.data() + moves_.size());
    if (!joins) {
      FlatBatch batch = {};
      batch.messages_begin = batch.messages_end = count_of(messages_);
      batch.moves_begin = static_cast<std::int32_t>(first);
      batch.sources_begin = step.sources_begin;
      batches_.push_back(batch);
    }
    FlatBatch& batch = batches_.back();
    step.message = sent ? batch.messages_end - batch.messages_begin : -1;
    if (sent) {
      const auto begin = static_cast<std::int32_t>(sent->peers - program_.peers.data());
      messages_.push_back({sent->bytes, begin, begin + sent->peer_count});
      ++batch.messages_end;
    }
    for (std::size_t i = first; i < moves_.size(); ++i) {
      moves_[i].step = count_of(steps_);
      batch.longest = std::max(batch.longest, moves_[i].bytes);
    }
    batch.moves_end = count_of(moves_);
    batch.sources_end = step.sources_end;
    batch.combines = batch.combines || step.kind == FlatStep::Kind::combine;
    steps_.push_back(step);
  }

  template <class T>
  static std::int32_t count_of(const std::vector<T>& items) {
    return static_cast<std::int32_t>(items.size());
  }

  static std::size_t in_words(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

  // Returns where they begin in the layout.
  template <class T>
  std::uint32_t append(const std::vector<T>& items, const FlatLayout& layout) {
    const std::size_t begin = pieces_.size(), bytes = items.size() * sizeof(T);
    pieces_.resize(begin + in_words(bytes));
    if (bytes > 0) std::memcpy(pieces_.data() + begin, items.data(), bytes);
    return static_cast<std::uint32_t>(begin - layout.at);
  }

  static constexpr int before_all = -2, after_all = -3;  // rounds

  const Program& program_;
  const Geometry& geometry_;
  const std::size_t wide_;  // where temporary memory holds a slice's values as float32
  Layout layout_;
  std::vector<char> sent_already_;  // by step: an earlier one sends it
  std::vector<FlatLayout> layouts_;
  std::vector<std::byte> pieces_;  // of all layouts so far
  // Of one layout.
  Batching batching_;
  std::vector<FlatBatch> batches_;
  std::vector<FlatMessage> messages_;
  std::vector<FlatStep> steps_;
  std::vector<FlatMove> moves_;
  std::vector<std::int32_t> sources_;
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
