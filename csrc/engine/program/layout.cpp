#include "engine/program/layout.h"

namespace ringreduce {
namespace {

// Local steps read the part at from_begin instead.
const Part& source_part(const Program& program, const Step& step, int part) {
  return program.parts[step.is_local() ? step.from_begin + (part - step.parts_begin) : part];
}

}  // namespace

void Layout::resolve(const Program& program, const Geometry& g, std::size_t slice) {
  actions_.clear();
  moves_.clear();
  actions_.reserve(program.steps.size());
  moves_.reserve(program.parts.size());
  for (const Step& step : program.steps) {
    Action action;
    action.step = &step;
    action.peers = program.peers.data() + step.peers_begin;
    action.peer_count = step.peers_end - step.peers_begin;
    for (int p = step.parts_begin; p < step.parts_end; ++p) {
      const Part& part = program.parts[p];
      const Part& from = source_part(program, step, p);
      const bool sends = step.kind == Step::Kind::send;
      const int stride = g.whole ? part.chunks.count : 1;
      for (int i = 0; i < part.chunks.count; i += stride) {
        const Run source = g.run(from.source, slice, from.chunks.first + i, stride);
        const Run target = g.run(part.target, slice, part.chunks.first + i, stride);
        const Run own = g.run(part.source, slice, part.chunks.first + i, stride);
        const std::size_t count = sends ? source.count : target.count;
        action.bytes += g.wire == Encoding::none ? count * g.element : encoded_bytes(g.wire, count);
        moves_.push_back({source.offset * g.element, target.offset * g.element, own.offset * g.element, count,
                          count * g.element, from.source, part.target, part.source, part.last, part.keep,
                          part.quantize});
      }
    }
    action.skip = action.bytes == 0 && slice > 0;
    actions_.push_back(action);
  }
  // From here on the moves stay in place.
  const Move* next = moves_.data();
  for (Action& action : actions_) {
    action.moves = next;
    const Step& step = *action.step;
    for (int p = step.parts_begin; p < step.parts_end; ++p)
      next += g.whole ? 1 : program.parts[p].chunks.count;
    action.moves_end = next;
    action.simple =
        action.moves_end - action.moves == 1 && (step.kind != Step::Kind::combine || action.peer_count == 2);
    if (step.kind == Step::Kind::combine) action.remote = action.peers[0] < 0 ? 1 : 0;
  }
}

}  // namespace ringreduce
