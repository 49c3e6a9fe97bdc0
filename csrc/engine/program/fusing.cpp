#include "engine/program/fusing.h"

#include <algorithm>

namespace ringreduce {
namespace {

const Part* only_part(const Program& program, const Step& step) {
  return step.parts_end - step.parts_begin == 1 ? &program.parts[step.parts_begin] : nullptr;
}

bool same_peers(const Program& program, const Step& combine, const Step& send) {
  std::vector<int> sources(program.peers.begin() + combine.peers_begin,
                           program.peers.begin() + combine.peers_end);
  std::erase(sources, -1);
  return std::equal(sources.begin(), sources.end(), program.peers.begin() + send.peers_begin,
                    program.peers.begin() + send.peers_end);
}

bool touches(const Program& program, const Step& step, const Span& span) {
  const auto overlaps = [&](const Part& part) {
    const Span& other = part.chunks;
    return other.first < span.first + span.count && span.first < other.first + other.count;
  };
  const Part* const parts = program.parts.data();
  return std::any_of(parts + step.parts_begin, parts + step.parts_end, overlaps) ||
         (step.is_local() && overlaps(parts[step.from_begin]));
}

// Whether a step after the one at `after`, other than the send at `send`, reads these chunks.
bool read_again(const Program& program, int after, int send, const Span& span) {
  for (int i = after + 1; i < static_cast<int>(program.steps.size()); ++i) {
    const Step& step = program.steps[i];
    if (i == send || !touches(program, step, span)) continue;
    const Part* part = step.kind == Step::Kind::receive ? only_part(program, step) : nullptr;
    return !part || !(part->chunks == span);
  }
  return false;
}

}  // namespace

void fuse(Program& program) {
  const int count = static_cast<int>(program.steps.size());
  std::vector<bool> taken(count, false);
  for (int i = 0; i < count; ++i) {
    Step& step = program.steps[i];
    if (step.kind != Step::Kind::combine && step.kind != Step::Kind::receive) continue;
    const Part* part = only_part(program, step);
    if (!part) continue;
    for (int j = i + 1; j < count && program.steps[j].round <= step.round + 1; ++j) {
      const Step& send = program.steps[j];
      const Part* sent = send.kind == Step::Kind::send ? only_part(program, send) : nullptr;
      if (!sent || taken[j] || !(sent->chunks == part->chunks) || send.round == step.round) continue;
      step.fused = j;
      taken[j] = true;
      step.pushable = step.kind == Step::Kind::combine && same_peers(program, step, send);
      program.parts[step.parts_begin].keep =
          part->target == Memory::output || step.pushable || read_again(program, i, j, part->chunks);
      break;
    }
  }
}

void mark_grants(Program& program) {
  for (int i = 0; i < static_cast<int>(program.steps.size()); ++i) {
    Step& step = program.steps[i];
    const Part* part = step.kind == Step::Kind::send && step.lendable ? only_part(program, step) : nullptr;
    if (!part || step.peers_end - step.peers_begin != 1) continue;
    for (int j = i + 1; j < static_cast<int>(program.steps.size()); ++j) {
      const Step& next = program.steps[j];
      if (!touches(program, next, part->chunks)) continue;
      const Part* replaced = next.kind == Step::Kind::receive ? only_part(program, next) : nullptr;
      step.grants = replaced && replaced->chunks == part->chunks && replaced->target == Memory::output &&
                    program.peers[next.peers_begin] == program.peers[step.peers_begin] &&
                    next.fence_end - next.fence_begin == 1;
      break;
    }
  }
}

void mark_shared(Program& program) {
  const Schedule& schedule = program.schedule;
  if (schedule.collective != Collective::all_reduce || schedule.world != 2 || program.steps.size() != 2)
    return;
  Step& send = program.steps[0];
  Step& combine = program.steps[1];
  const auto is_whole = [&](const Step& step, Step::Kind kind) {
    const Part* part = step.kind == kind ? only_part(program, step) : nullptr;
    return part && part->chunks == Span{0, schedule.chunks};
  };
  send.shared = is_whole(send, Step::Kind::send) && is_whole(combine, Step::Kind::combine);
  send.grants = combine.shared = send.shared;
}

}  // namespace ringreduce
