#include "simulate/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ringreduce {
namespace {

constexpr int fewest_rounds = 32;  // of a run, to estimate the others

std::size_t sends_of(const Repetition& repetition) {
  std::size_t sends = 0;
  for (const Script& script : repetition.scripts) sends += script.sends();
  return sends * repetition.ranks / repetition.scripts.size();
}

void stretch(Answer& answer, double factor) {
  answer.end.at *= factor;
  for (float& seconds : answer.end.made_of) seconds *= static_cast<float>(factor);
  for (double& ended : answer.ended) ended *= factor;
}

}  // namespace

Sample::Sample(Repetition& repetition, const Question& question) : question_(question) {
  int heaviest = 1;
  const int chunks = repetition.chunks;
  for (const Script& script : repetition.scripts) heaviest = std::max(heaviest, script.heaviest_round());
  // As the engine cuts them, but with equal lengths.
  if (question.slice_bytes > 0)
    slices_ =
        std::max(static_cast<int>(std::ceil(question.bytes / chunks * heaviest / question.slice_bytes)), 1);
  chunk_bytes_ = question.bytes / chunks / slices_;
  const std::size_t all = sends_of(repetition);
  if (all > question.most_messages) shorten(repetition.scripts, all);
  const std::size_t messages = std::max<std::size_t>(sends_of(repetition), 1);
  messages_ = static_cast<double>(std::max<std::size_t>(all, 1)) / static_cast<double>(messages);
  // Fewer than four per lane say little about the others, unless each takes so long that its neighbours do
  // not matter.
  const std::size_t most = question.most_messages / messages, lanes = question.lanes;
  const std::size_t least = most >= 2 ? 4 * lanes : 1;
  slice_ended_.resize(std::min<std::size_t>(slices_, std::max(most, least)));
}

void Sample::shorten(std::vector<Script>& scripts, std::size_t messages) {
  const int rounds = scripts[0].rounds();
  std::vector<bool> like_before(rounds, true);
  for (const Script& script : scripts) {
    if (script.rounds() != rounds) return;
    for (int round = 0; round < rounds; ++round)
      like_before[round] = like_before[round] && round > 0 && script.alike(round - 1, round);
  }
  const auto share = static_cast<double>(question_.most_messages) / static_cast<double>(messages) /
                     std::min(slices_, 4 * question_.lanes);
  int left_out = 0;
  for (int first = 0, end; first < rounds; first = end) {
    for (end = first + 1; end < rounds && like_before[end];) ++end;
    const int kept = std::min(std::max(static_cast<int>((end - first) * share), fewest_rounds), end - first);
    runs_.push_back({first - left_out, kept, end - first - kept});
    left_out += end - first - kept;
  }
  for (Script& script : scripts) {
    for (const Run& run : runs_) script.leave_out(run.first + run.rounds, run.left_out);
  }
  round_ended_.resize(rounds - left_out);
}

void Sample::note_round(int round, const Moment& ended) {
  if (!round_ended_.empty()) round_ended_[round] = std::max(round_ended_[round], ended.at);
}

void Sample::note_slice(int slice, const Moment& ended) {
  slice_ended_[slice] = later(slice_ended_[slice], ended);
}

// Per slice: each round takes as long as those in the second half of its run.
double Sample::seconds_left_out() const {
  double seconds = 0;
  for (const Run& run : runs_) {
    if (run.left_out == 0) continue;
    const int end = run.first + run.rounds - 1, middle = run.first + run.rounds / 2;
    seconds += (round_ended_[end] - round_ended_[middle]) / (end - middle) * run.left_out;
  }
  return seconds;
}

void Sample::complete(Answer& answer) const {
  const int simulated = slices();
  for (const Moment& ended : slice_ended_) answer.end = later(answer.end, ended);
  answer.slices = slices_;
  answer.simulated_slices = simulated;
  if (simulated == 1) {
    stretch(answer, slices_);
  } else if (simulated < slices_) {
    // Each of the others takes as long as one in the middle of those that were simulated, with as many
    // running before it as after it. Slices end in groups, one per lane.
    const int lanes = question_.lanes, end = simulated - lanes - 1,
              first = end - std::max((end + 1 - lanes) / lanes, 1) * lanes;
    const double more = static_cast<double>(slices_ - simulated) / (end - first);
    const Moment &last = slice_ended_[end], &before = slice_ended_[first];
    for (std::size_t component = 0; component < component_count; ++component)
      answer.end.made_of[component] +=
          static_cast<float>(more * (last.made_of[component] - before.made_of[component]));
    const double added = more * (last.at - before.at);
    answer.end.at += added;
    for (double& ended : answer.ended) ended += added;
  }
  if (!round_ended_.empty()) stretch(answer, 1 + seconds_left_out() / slice_ended_[0].at);
  const double messages = messages_ * slices_ / simulated;
  for (auto* busy : {&answer.busy_ranks, &answer.busy_links}) {
    for (double& seconds : *busy) seconds *= messages;
  }
  answer.messages = std::llround(static_cast<double>(answer.messages) * messages);
}

}  // namespace ringreduce
