#include "engine/program/program.h"

#include <algorithm>
#include <utility>

#include "engine/program/fusing.h"
#include "engine/program/quantizing.h"

namespace ringreduce {
namespace {

enum class State : std::uint8_t { none, input, kept, home };

bool contains(const std::vector<Span>& spans, int chunk) {
  return std::any_of(spans.begin(), spans.end(),
                     [&](const Span& s) { return chunk >= s.first && chunk < s.first + s.count; });
}

// Adds one chunk: to the last run if allowed and if both are alike.
void append_or_join(std::vector<Part>& parts, const Part& one, bool may_join) {
  Part* const before = may_join ? &parts.back() : nullptr;
  if (before && before->source == one.source && before->target == one.target && before->last == one.last &&
      before->quantize == one.quantize) {
    ++before->chunks.count;
  } else {
    parts.push_back(one);
  }
}

Traffic traffic_of(const Program& program) {
  int sent = 0;
  bool answers = false, receives = false;
  for (const Step& step : program.steps) {
    answers = answers || step.pushable;
    receives = receives || step.kind == Step::Kind::receive || step.kind == Step::Kind::combine;
    if (step.kind != Step::Kind::send) continue;
    for (int p = step.parts_begin; p < step.parts_end; ++p) sent += program.parts[p].chunks.count;
  }
  if (sent == 0) return Traffic::inbound;
  if (!receives) return Traffic::outbound;
  return answers && sent <= program.schedule.chunks ? Traffic::answered : Traffic::any;
}

class Lowering {
 public:
  explicit Lowering(Schedule schedule, const Quantizing* quantizing = nullptr) : quantizing_(quantizing) {
    program_.schedule = std::move(schedule);
  }

  Program run(bool answers_directly, bool keeps_first = false) {
    const Schedule& s = program_.schedule;
    const int all = s.chunks + s.scratch;
    state_.assign(all, State::none);
    home_.assign(all, Memory::temp);
    lent_.resize(all);
    for (int c = 0; c < s.chunks; ++c) {
      if (starts_with_value(s, c)) state_[c] = State::input;
      if (holds_result(s, c)) home_[c] = Memory::output;
    }
    if (keeps_first) keep_first();
    for (const Round& round : s.rounds) lower_round(round);
    copy_untouched();
    mark_last();
    fuse(program_);
    if (answers_directly) mark_grants(program_);
    mark_shared(program_);
    program_.traffic = traffic_of(program_);
    return std::move(program_);
  }

 private:
  void lower_round(const Round& round) {
    for (const Send& send : round.sends) add_send(round, send);
    if (quantizing_) quantize_sources(round);
    const std::vector<State> before = state_;
    // Locals read the values from before the round, so they precede arrivals.
    for (const Local& local : round.locals) add_local(local, before);
    std::vector<bool> done(round.recvs.size());
    for (std::size_t i = 0; i < round.recvs.size(); ++i) {
      if (!done[i]) add_recv(round, i, done, before);
    }
    ++round_;
  }

  // Splits spans into runs of chunks that are alike.
  template <typename Describe>
  void add_parts(Step& step, const std::vector<Span>& spans, Describe describe) {
    step.parts_begin = static_cast<int>(program_.parts.size());
    for (const Span& span : spans) {
      for (int c = span.first; c < span.first + span.count; ++c) {
        // Scratch begins again with the length of the first chunk.
        const bool goes_on =
            c < program_.schedule.chunks || (c - program_.schedule.chunks) % program_.schedule.chunks;
        append_or_join(program_.parts, describe(c), goes_on && c > span.first);
      }
    }
    step.parts_end = static_cast<int>(program_.parts.size());
  }

  void add_peers(Step& step, const std::vector<int>& peers) {
    step.peers_begin = static_cast<int>(program_.peers.size());
    program_.peers.insert(program_.peers.end(), peers.begin(), peers.end());
    step.peers_end = static_cast<int>(program_.peers.size());
  }

  Step copying(Step::Kind kind, const Part& from, const Part& to) {
    Step step{kind};
    step.from_begin = static_cast<int>(program_.parts.size());
    step.parts_begin = step.from_begin + 1;
    step.parts_end = step.from_begin + 2;
    program_.parts.insert(program_.parts.end(), {from, to});
    return step;
  }

  // Where a chunk is now, and where its next value goes.
  Part part_in(const std::vector<State>& states, int chunk) const {
    const Memory source = states[chunk] == State::input  ? Memory::input
                          : states[chunk] == State::kept ? Memory::kept
                                                         : home_[chunk];
    return {{chunk, 1}, source, home_[chunk]};
  }

  void add_send(const Round& round, const Send& send) {
    Step step{Step::Kind::send};
    add_parts(step, send.chunks, [&](int c) {
      Part part = part_in(state_, c);
      part.quantize = state_[c] == State::input && quantizing_ && quantizing_->needed_in(round_, c);
      if (part.quantize) state_[c] = State::home;
      return part;
    });
    add_peers(step, send.peers);
    step.tickets_begin = program_.tickets;
    program_.tickets += static_cast<int>(send.peers.size());
    const bool in_one_part = step.parts_end - step.parts_begin == 1;
    const int index = static_cast<int>(program_.steps.size());
    each_chunk(send.chunks, [&](int c) {
      for (const Recv& recv : round.recvs) step.overwritten |= contains(recv.chunks, c);
      for (const Local& local : round.locals) step.overwritten |= contains({local.to}, c);
      if (in_one_part) lent_[c].push_back(index);
    });
    step.lendable = in_one_part && !step.overwritten;
    push(step);
  }

  // A copy of this rank's own value may be sent later.
  void quantize_sources(const Round& round) {
    for (const Local& local : round.locals) {
      each_chunk(local.from, [&](int c) {
        if (state_[c] != State::input || !quantizing_->needed_in(round_, c)) return;
        const Part from = part_in(state_, c);
        Part to = from;
        to.quantize = true;
        Step step = copying(Step::Kind::local, from, to);
        wrote(step, {c, 1});
        push(step);
      });
    }
  }

  // All reducing receives of the same chunks become one combination, in rank order, with this rank's value in
  // its place.
  void add_recv(const Round& round, std::size_t first, std::vector<bool>& done,
                const std::vector<State>& before) {
    const Recv& recv = round.recvs[first];
    Step step{recv.reduce ? Step::Kind::combine : Step::Kind::receive};
    std::vector<int> sources;
    if (recv.reduce) {
      for (std::size_t i = first; i < round.recvs.size(); ++i) {
        if (!round.recvs[i].reduce || round.recvs[i].chunks != recv.chunks) continue;
        sources.push_back(round.recvs[i].peer);
        done[i] = true;
      }
      std::sort(sources.begin(), sources.end());
      const auto place = std::lower_bound(sources.begin(), sources.end(), program_.schedule.rank);
      sources.insert(place, -1);
    } else {
      sources.push_back(recv.peer);
    }
    add_parts(step, recv.chunks, [&](int c) { return part_in(before, c); });
    add_peers(step, sources);
    for (const Span& span : recv.chunks) wrote(step, span);
    push(step);
  }

  void add_local(const Local& local, const std::vector<State>& before) {
    // Chunk by chunk, to keep the two lists of parts in step.
    for (int i = 0; i < local.to.count; ++i) {
      const int to = local.to.first + i, from = local.from.first + i;
      Step step = copying(local.reduce ? Step::Kind::local_combine : Step::Kind::local, part_in(before, from),
                          part_in(before, to));
      wrote(step, {to, 1});
      program_.combines_locally = program_.combines_locally || local.reduce;
      push(step);
    }
  }

  // Copies what this rank sends of its input and no step of it writes.
  void keep_first() {
    const Schedule& s = program_.schedule;
    std::vector<bool> sent(state_.size()), written(state_.size());
    for (const Round& round : s.rounds) {
      for (const Send& send : round.sends) each_chunk(send.chunks, [&](int c) { sent[c] = true; });
      for (const Recv& recv : round.recvs) each_chunk(recv.chunks, [&](int c) { written[c] = true; });
      for (const Local& local : round.locals) each_chunk(local.to, [&](int c) { written[c] = true; });
    }
    copy_where([&](int c) { return sent[c] && !written[c]; }, State::kept);
    program_.keeps_first = !program_.steps.empty();
  }

  // Chunks of the result that no step wrote are still in the input.
  void copy_untouched() {
    copy_where([](int) { return true; }, State::home);
  }

  // Copies the chunks of the result that are in the input, and fit.
  template <typename Fits>
  void copy_where(Fits fits, State then) {
    const Schedule& s = program_.schedule;
    const auto copied = [&](int c) {
      return c < s.chunks && state_[c] == State::input && holds_result(s, c) && fits(c);
    };
    for (int c = 0; c < s.chunks; ++c) {
      Part part{{c, 0}, Memory::input, Memory::output};
      for (; copied(c); ++c, ++part.chunks.count) state_[c] = then;
      if (part.chunks.count > 0) push(copying(Step::Kind::local, part, part));
    }
  }

  // A write must wait for the readers of what it overwrites. These are readers of sends in earlier rounds,
  // never of this one: those are lent to no reader, at most to a wire. Waiting for them is what a rendezvous
  // send would do, and as free of deadlock. Out of place, the input is lent, and nothing waits for its
  // readers.
  void wrote(Step& step, const Span& span) {
    if (step.fence_end == step.fence_begin) step.fence_begin = static_cast<int>(program_.fences.size());
    each_chunk(span, [&](int c) {
      for (int send : lent_[c]) {
        const auto end = program_.fences.end();
        if (std::find(program_.fences.begin() + step.fence_begin, end, send) != end) continue;
        program_.fences.push_back(send);
      }
      lent_[c].clear();
      state_[c] = State::home;
    });
    step.fence_end = static_cast<int>(program_.fences.size());
  }

  void push(const Step& step) {
    program_.steps.push_back(step);
    program_.steps.back().round = round_;
  }

  // The result is complete if the rank's last write to a chunk of it is a combination; otherwise the complete
  // value comes from another rank. (The checker refuses all-reduces for which this does not hold.)
  void mark_last() {
    std::vector<int> last(state_.size(), -1);
    for (int i = 0; i < static_cast<int>(program_.steps.size()); ++i) {
      const Step& step = program_.steps[i];
      if (step.kind == Step::Kind::send) continue;
      for (int p = step.parts_begin; p < step.parts_end; ++p) {
        each_chunk(program_.parts[p].chunks, [&](int c) { last[c] = i; });
      }
    }
    std::vector<Part> parts;  // rebuilt, because a part may need to be split
    for (int i = 0; i < static_cast<int>(program_.steps.size()); ++i) {
      Step& step = program_.steps[i];
      const int begin = static_cast<int>(parts.size());
      for (int p = step.parts_begin; p < step.parts_end; ++p) {
        const Part part = program_.parts[p];
        each_chunk(part.chunks, [&](int c) {
          Part one = part;
          one.chunks = {c, 1};
          one.last = step.combines() && part.target == Memory::output && last[c] == i;
          if (step.combines()) one.quantize = quantizes(i, c);
          append_or_join(parts, one, c > part.chunks.first);
        });
        if (part.target == Memory::temp && (step.kind != Step::Kind::send || part.quantize))
          program_.uses_temp = true;
      }
      step.parts_begin = begin;
      step.parts_end = static_cast<int>(parts.size());
      if (step.is_local()) parts.push_back(program_.parts[std::exchange(step.from_begin, step.parts_end)]);
    }
    program_.parts = std::move(parts);
  }

  // Whether what the combination at `index` leaves in this chunk is sent.
  bool quantizes(int index, int chunk) const {
    const std::vector<Step>& steps = program_.steps;
    if (!quantizing_ || !quantizing_->combined_in(steps[index].round, chunk)) return false;
    for (std::size_t i = index + 1; i < steps.size() && steps[i].round == steps[index].round; ++i) {
      const Step& step = steps[i];
      if (!step.combines()) continue;
      for (int p = step.parts_begin; p < step.parts_end; ++p) {
        if (contains({program_.parts[p].chunks}, chunk)) return false;
      }
    }
    return true;
  }

  Program program_;
  const Quantizing* const quantizing_;  // null: messages are not encoded
  std::vector<State> state_;
  std::vector<Memory> home_;
  std::vector<std::vector<int>> lent_;  // by chunk: lendable sends since the last write
  int round_ = 0;
};

}  // namespace

int heaviest_round(const Schedule& schedule) {
  int most = 0;
  for (const Round& round : schedule.rounds) {
    int sent = 0;
    for (const Send& send : round.sends) sent += chunks_in(send.chunks);
    most = std::max(most, sent);
  }
  return most;
}

bool sends_to_everyone(const Schedule& schedule) {
  if (schedule.rounds.size() != 1 || schedule.rounds[0].sends.size() != 1) return false;
  return schedule.rounds[0].sends[0].peers.size() + 1 == static_cast<std::size_t>(schedule.world);
}

Program lower(Schedule schedule, int heaviest_round, bool answers_directly, bool keeps_first) {
  Program program = Lowering(std::move(schedule)).run(answers_directly, keeps_first);
  program.heaviest_round = heaviest_round;
  return program;
}

Program lower_coded(Schedule schedule, int heaviest_round, const PassedOn* passed_on) {
  const Quantizing quantizing(schedule, passed_on);
  Program program = Lowering(std::move(schedule), &quantizing).run(false);
  program.heaviest_round = heaviest_round;
  return program;
}

}  // namespace ringreduce
