#include "engine/program/quantizing.h"

namespace ringreduce {

Quantizing::Quantizing(const Schedule& schedule, const PassedOn* passed_on)
    : quantizes_(ends_alike(schedule.collective)) {
  if (!quantizes_) return;
  const std::vector<bool> none(schedule.chunks + schedule.scratch, false);
  const std::size_t rounds = schedule.rounds.size();
  needed_.assign(rounds, none);
  combined_.assign(rounds, std::vector<bool>(none.size(), passed_on == nullptr));
  for (std::size_t round = 0; passed_on && round < rounds; ++round) {
    for (const int chunk : (*passed_on)[round]) combined_[round][chunk] = true;
  }
  look_back(schedule);
}

// From the last round to the first: a chunk is needed before a step that reads it, and not before one that
// replaces it.
void Quantizing::look_back(const Schedule& schedule) {
  std::vector<bool> needed(schedule.chunks + schedule.scratch, false);
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) needed[chunk] = holds_result(schedule, chunk);
  for (std::size_t k = schedule.rounds.size(); k-- > 0;) {
    const Round& round = schedule.rounds[k];
    for (std::size_t chunk = 0; chunk < needed.size(); ++chunk) {
      combined_[k][chunk] = combined_[k][chunk] && needed[chunk];
    }
    for (const Recv& recv : round.recvs) {
      each_chunk(recv.chunks, [&](int chunk) { needed[chunk] = recv.reduce; });
    }
    for (const Local& local : round.locals) {
      each_chunk(local.to, [&](int chunk) { needed[chunk] = local.reduce; });
    }
    for (const Local& local : round.locals) {
      each_chunk(local.from, [&](int chunk) { needed[chunk] = true; });
    }
    needed_[k] = needed;
  }
}

}  // namespace ringreduce
