// The computations of a walk over NCCL, by our kernels, on the stream.
#include <algorithm>

#include "engine/program/narrow.h"
#include "gpu/nccl/walk.h"
#include "gpu/reduce/spans.h"

namespace ringreduce {

// `wire`: the form of messages.
void NcclWalk::combine_some(Encoding wire, Op op, double factor, const Targets& targets,
                            const Source* sources, std::size_t number, std::size_t count) {
  if (count == 0) return;
  const void* from[device::most_spans];
  std::uint32_t messages = 0;
  for (std::size_t i = 0; i < number; ++i) {
    from[i] = sources[i].at;
    messages |= static_cast<std::uint32_t>(sources[i].is_message) << i;
  }
  void* to[2];
  int wanted = 0;
  if (targets.message) to[wanted++] = targets.message;
  if (targets.values) to[wanted++] = targets.values;
  const int sources_given = static_cast<int>(number);
  CudaLibrary::check(wire == Encoding::none
                         ? kernels_.combine(static_cast<int>(dtype_), static_cast<int>(op), to, wanted, from,
                                            sources_given, count, factor, stream_, 0)
                         : kernels_.combine_coded(static_cast<int>(wire), static_cast<int>(dtype_),
                                                  static_cast<int>(op), messages, targets.message ? 1 : 0,
                                                  targets.quantize, to, wanted, from, sources_given, count,
                                                  factor, stream_, 0));
}

// A kernel takes a limited number of sources. If there are more, `partial` gets the result of the first.
void NcclWalk::combine_sources(const Move& move, const Targets& targets, char* partial) {
  constexpr std::size_t most = device::most_spans;
  while (sources_.size() > most) {
    combine_some(geometry_.wire, between_, 1, {partial, nullptr}, sources_.data(), most, move.count);
    sources_.erase(sources_.begin(), sources_.begin() + most - 1);
    sources_[0] = {partial, false};
  }
  const bool divides = move.last && call_.op == Op::avg;
  combine_some(geometry_.wire, divides ? Op::avg : between_, divides ? plan_.divide : 1, targets,
               sources_.data(), sources_.size(), move.count);
}

void NcclWalk::combine(const Action& action, const char* landing) {
  std::size_t longest = 0;
  for (const Move* move = action.moves; move != action.moves_end; ++move)
    longest = std::max(longest, move->bytes);
  char* const partial = has_partial(*action.step) ? take_room(longest) : nullptr;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    if (move->count == 0) continue;
    char* const home = at(move->to, move->target);
    const char* own = at(move->from, move->source);
    if (is_scaled(*move)) {
      scale(home, own, move->count);
      own = home;
    }
    sources_.clear();
    const char* message = landing;
    for (int p = 0; p < action.peer_count; ++p) {
      const bool is_own = action.peers[p] < 0;
      sources_.push_back({is_own ? own : message, !is_own});
      if (!is_own) message += in_lines(action.bytes);
    }
    // A plain message may receive the sum of the first ones.
    char* const first =
        const_cast<char*>(static_cast<const char*>(sources_[sources_[0].is_message ? 0 : 1].at));
    combine_sources(*move, {home, nullptr, move->quantize}, partial ? partial : first);
    landing += message_bytes(move->count);
  }
}

void NcclWalk::put_in_place(const Action& action, const char* landing) {
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    char* const to = at(move->to, move->target);
    if (coded()) {
      const Source source{landing, true};
      combine_some(geometry_.wire, Op::sum, 1, {to, nullptr}, &source, 1, move->count);
    } else {
      copy(to, landing, move->bytes);
    }
    landing += message_bytes(move->count);
  }
}

void NcclWalk::local(const Action& action) {
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    char* const to = at(move->to, move->target);
    const char* const from = at(move->from, move->source);
    if (action.step->kind == Step::Kind::local_combine) {
      sources_.assign({{at(move->own_in, move->own), false}, {from, false}});
      combine_sources(*move, {to, nullptr, move->quantize}, nullptr);
      continue;
    }
    is_scaled(*move) ? scale(to, from, move->count) : copy(to, from, move->bytes);
    if (!move->quantize) continue;
    const Source source{to, false};
    combine_some(geometry_.wire, Op::sum, 1, {to, nullptr, true}, &source, 1, move->count);
  }
}

// Writes a message into temporary memory, scaled or encoded.
void NcclWalk::prepare_send(const Action& action) {
  char* to = kept_[step_of(action)] = take_room(action.bytes);
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    const char* const from = at(move->from, move->source);
    if (coded()) {
      const Source source{from, false};
      const Targets targets{move->quantize ? at(move->to, move->target) : nullptr, to, move->quantize};
      combine_some(geometry_.wire, is_scaled(*move) ? scaling : Op::sum, factor_, targets, &source, 1,
                   move->count);
    } else {
      is_scaled(*move) ? scale(to, from, move->count) : copy(to, from, move->bytes);
    }
    to += message_bytes(move->count);
  }
}

// Between 16-bit arrays and float32, which the input's values are scaled in.
void NcclWalk::convert(std::size_t slice, Memory memory) {
  const bool widens = memory == Memory::input;
  auto* const array = widens ? reinterpret_cast<char*>(const_cast<std::byte*>(input_of_all(call_, rank_)))
                             : reinterpret_cast<char*>(output_of_all(call_, rank_));
  const bool scales = widens && scales_;
  each_narrow_run(geometry_, program_.schedule, slice, memory,
                  [&](std::size_t in_wide, std::size_t in_array, std::size_t count) {
                    char* const wide = bases_[0] + in_wide;
                    const Source source{widens ? array + in_array : wide, widens};
                    const Targets targets{widens ? wide : nullptr, widens ? nullptr : array + in_array};
                    combine_some(geometry_.narrow, scales ? scaling : Op::sum, factor_, targets, &source, 1,
                                 count);
                  });
}

}  // namespace ringreduce
