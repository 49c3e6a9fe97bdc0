#include "gpu/nccl/walk.h"

#include <algorithm>

#include "gpu/reduce/spans.h"

namespace ringreduce {
namespace {

std::uint8_t bit(Memory memory) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(memory));
}

bool is_local(const Step& step) {
  return step.kind == Step::Kind::local || step.kind == Step::Kind::local_combine;
}

}  // namespace

NcclWalk::NcclWalk(NcclGroup& group, const Call& call, const Plan& plan, int rank)
    : group_(group),
      call_(call),
      plan_(plan),
      program_(*plan.program),
      geometry_(plan.geometry),
      rank_(rank),
      dtype_(geometry_.wire == Encoding::none ? call.dtype : DType::float32),
      scales_(call.factor.has_value()),
      factor_(call.factor.value_or(1)),
      between_(call.op == Op::avg ? Op::sum : call.op) {
  if (program_.uses_temp) temp_bytes_ = in_lines(geometry_.temp_bytes(program_.schedule));
  wide_bytes_ = in_lines(geometry_.widened_bytes());
  find_staged();
}

// --- what a round needs of temporary memory ----------------------------------------------------------------

void NcclWalk::find_staged() {
  const Schedule& schedule = program_.schedule;
  std::vector<std::uint8_t> read(static_cast<std::size_t>(schedule.chunks + schedule.scratch));
  staged_.assign(program_.steps.size(), 0);
  for (auto first = program_.steps.begin(); first != program_.steps.end();) {
    const auto last = std::find_if(first, program_.steps.end(),
                                   [&](const Step& step) { return step.round != first->round; });
    std::fill(read.begin(), read.end(), std::uint8_t{0});
    std::for_each(first, last, [&](const Step& step) { add_reads(step, read); });
    std::size_t bytes = 0;
    for (; first != last; ++first) {
      staged_[first - program_.steps.begin()] = must_stage(*first, read);
      bytes += room_for(*first);
    }
    round_bytes_ = std::max(round_bytes_, bytes);
  }
}

// For each chunk, the memory in which a step reads its value from before the round.
void NcclWalk::add_reads(const Step& step, std::vector<std::uint8_t>& read) const {
  if (step.kind != Step::Kind::send && !is_local(step)) return;
  const int begin = is_local(step) ? step.from_begin : step.parts_begin;
  for (int p = begin; p < begin + step.parts_end - step.parts_begin; ++p) {
    const Part& part = program_.parts[p];
    for (int i = 0; i < part.chunks.count; ++i) read[part.chunks.first + i] |= bit(part.source);
  }
}

bool NcclWalk::must_stage(const Step& step, const std::vector<std::uint8_t>& read) const {
  if (step.kind == Step::Kind::combine) return true;
  if (step.kind != Step::Kind::receive) return false;
  if (coded()) return true;
  const bool in_place = input_of_all(call_, rank_) == output_of_all(call_, rank_);
  for (int p = step.parts_begin; p < step.parts_end; ++p) {
    const Part& part = program_.parts[p];
    std::uint8_t written = bit(part.target);
    if (in_place && part.target == Memory::output) written |= bit(Memory::input);
    for (int i = 0; i < part.chunks.count; ++i) {
      if (read[part.chunks.first + i] & written) return true;
    }
  }
  return false;
}

std::size_t NcclWalk::room_for(const Step& step) const {
  std::size_t chunks = 0;
  for (int p = step.parts_begin; p < step.parts_end; ++p) chunks += program_.parts[p].chunks.count;
  const std::size_t bytes = in_lines(chunks * message_bytes(geometry_.stride()));
  if (step.kind == Step::Kind::send) return scales_ || coded() ? bytes : 0;
  if (!staged_[&step - program_.steps.data()]) return 0;
  const int own = step.kind == Step::Kind::combine ? 1 : 0;
  const std::size_t partial =
      has_partial(step) ? in_lines(chunks * geometry_.stride() * geometry_.element) : 0;
  return bytes * static_cast<std::size_t>(step.peers_end - step.peers_begin - own) + partial;
}

// Whether a combination with more sources than a kernel takes needs memory for the sum of the first.
bool NcclWalk::has_partial(const Step& step) const {
  return coded() && step.kind == Step::Kind::combine &&
         step.peers_end - step.peers_begin > device::most_spans;
}

char* NcclWalk::take_room(std::size_t bytes) {
  char* const taken = free_;
  free_ += in_lines(bytes);
  return taken;
}

// --- slices and rounds -------------------------------------------------------------------------------------

void NcclWalk::run(char* room, void* stream, const NcclGroup::Tick& tick) {
  room_ = room;
  stream_ = stream;
  tick_ = &tick;
  kept_.resize(program_.steps.size());
  for (std::size_t slice = 0; slice < geometry_.slices; ++slice) run_slice(slice);
}

void NcclWalk::run_slice(std::size_t slice) {
  const bool is_last = slice + 1 == geometry_.slices;
  if (plan_.uneven) layout_.resolve(program_, geometry_, slice);
  const Layout& layout = plan_.uneven ? layout_ : is_last ? plan_.last_slice : plan_.full;
  // The layout of a full slice, computed for slice 0, serves all of them.
  const std::size_t shift = is_last || plan_.uneven ? 0 : slice * geometry_.slice * geometry_.element;
  bases_[0] = reinterpret_cast<char*>(const_cast<std::byte*>(input_of_all(call_, rank_))) + shift;
  bases_[1] = reinterpret_cast<char*>(output_of_all(call_, rank_)) + shift;
  bases_[2] = room_;
  if (narrow()) {
    bases_[0] = bases_[1] = room_ + temp_bytes_;
    convert(slice, Memory::input);
  }
  const Actions& actions = layout.actions();
  const Action* const end = actions.data() + actions.size();
  for (const Action* first = actions.data(); first != end;) {
    const Action* last = first;
    while (last != end && last->step->round == first->step->round) ++last;
    run_round(first, last);
    first = last;
  }
  if (narrow()) convert(slice, Memory::output);
}

// This rank's own changes come after the messages, which carry the old values.
void NcclWalk::run_round(const Action* first, const Action* last) {
  free_ = room_ + temp_bytes_ + wide_bytes_;
  prepare_sends(first, last);
  exchange(first, last);
  for (const Action* action = first; action != last; ++action) {
    const char* const message = kept_[step_of(*action)];
    switch (action->step->kind) {
      case Step::Kind::send:
        break;
      case Step::Kind::combine:
        combine(*action, message);
        break;
      case Step::Kind::receive:
        if (staged_[step_of(*action)]) put_in_place(*action, message);
        break;
      default:
        local(*action);
    }
  }
}

std::size_t NcclWalk::step_of(const Action& action) const {
  return static_cast<std::size_t>(action.step - program_.steps.data());
}

// --- messages ----------------------------------------------------------------------------------------------

void NcclWalk::prepare_sends(const Action* first, const Action* last) {
  for (const Action* action = first; action != last; ++action) {
    kept_[step_of(*action)] = nullptr;
    const auto scaled = [&](const Move& move) { return is_scaled(move); };
    if (action->step->kind != Step::Kind::send) continue;
    if (coded() || std::any_of(action->moves, action->moves_end, scaled)) prepare_send(*action);
  }
}

void NcclWalk::exchange(const Action* first, const Action* last) {
  const auto is_message = [](const Action& action) { return action.bytes > 0 && !is_local(*action.step); };
  if (std::none_of(first, last, is_message)) return;
  NcclTogether together(group_);
  for (const Action* action = first; action != last; ++action) {
    if (!is_message(*action)) continue;
    char*& kept = kept_[step_of(*action)];
    if (action->step->kind == Step::Kind::send) {
      send(*action, kept);
    } else {
      const int own = action->step->kind == Step::Kind::combine ? 1 : 0;
      const auto peers = static_cast<std::size_t>(action->peer_count - own);
      if (staged_[step_of(*action)]) kept = take_room(in_lines(action->bytes) * peers);
      receive(*action, kept);
    }
  }
  together.end("a round's messages", *tick_);
}

template <class Visit>
void NcclWalk::each_chunk(char* run, std::size_t bytes, Visit visit) const {
  const std::size_t chunk = geometry_.whole ? message_bytes(geometry_.chunk) : bytes;
  for (std::size_t done = 0; done < bytes; done += chunk) visit(run + done, std::min(chunk, bytes - done));
}

void NcclWalk::send(const Action& action, const char* staged) {
  const NcclLibrary& nccl = group_.library();
  std::size_t done = 0;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    const char* const from = staged ? staged + done : at(move->from, move->source);
    const std::size_t length = message_bytes(move->count);
    done += length;
    each_chunk(const_cast<char*>(from), length, [&](const char* chunk, std::size_t bytes) {
      for (int p = 0; p < action.peer_count; ++p) {
        group_.check(nccl.send(chunk, bytes, nccl::uint8, action.peers[p], group_.comm(), stream_), "a send");
      }
    });
  }
}

// Receives into the landing memory, one message after the other, or in place.
void NcclWalk::receive(const Action& action, char* landing) {
  const NcclLibrary& nccl = group_.library();
  for (int p = 0; p < action.peer_count; ++p) {
    if (action.peers[p] < 0) continue;
    std::size_t done = 0;
    for (const Move* move = action.moves; move != action.moves_end; ++move) {
      char* const to = landing ? landing + done : at(move->to, move->target);
      const std::size_t length = message_bytes(move->count);
      done += length;
      each_chunk(to, length, [&](char* chunk, std::size_t bytes) {
        group_.check(nccl.recv(chunk, bytes, nccl::uint8, action.peers[p], group_.comm(), stream_),
                     "a receive");
      });
    }
    if (landing) landing += in_lines(action.bytes);
  }
}

}  // namespace ringreduce
