#include "gpu/calls/watch.h"

#include "engine/messages/transfer.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds every{20};
constexpr milliseconds worth_a_look{40};  // for a call that takes long, because looking takes a core
constexpr milliseconds suspicious_after{100};

}  // namespace

Watch::Watch(Calls& calls, Runners runners, const std::atomic<std::uint64_t>& last_launched)
    : calls_(calls), runners_(std::move(runners)), last_launched_(last_launched), thread_(every, [this] {
        for (const auto& runner : runners_()) look(*runner);
      }) {}

void Watch::look(Runner& runner) {
  try {
    if (calls_.is_over()) return runner.give_up();
    calls_.guarded(
        [&] { calls_.telling_others([&] { look_for_what_is_stuck(runner, progress_[&runner]); }); });
  } catch (const Error&) {
    runner.give_up();
  }
}

// Throws the reason if calls have not moved on for long. Different calls show in the ranks' records, and
// count only when seen twice.
void Watch::look_for_what_is_stuck(Runner& runner, Progress& progress) {
  runner.check();
  if (runner.has_disagreed()) disagree();
  calls_.transport->check();
  const std::uint64_t ended = runner.ended();
  if (runner.begun() == ended || ended != progress.ended || progress.since == Clock::time_point()) {
    progress.ended = ended;
    progress.since = Clock::now();
    progress.disagreement.reset();
    progress.backoff.reset();
    return;
  }
  if (Clock::now() - progress.since < worth_a_look) return;
  // As in a thread that waits for peers, which notices dead ones.
  while (!calls_.is_over() && runner.ended() == ended && !calls_.transport->pause(progress.backoff, -1)) {
  }
  const auto lasted = Clock::now() - progress.since;
  const std::optional<Transfer> message = runner.waiting_message();
  if (message && lasted >= suspicious_after) check_closed(*message);
  if (lasted >= calls_.options.timeout && message) {
    const int late = calls_.diagnosis.late_rank(message->peer, 0, calls_.options.timeout);
    calls_.diagnosis.time_out(calls_.options.timeout, late, 0, in_words(*message, calls_.rank));
  }
  if (lasted >= calls_.options.timeout) {
    const int late = calls_.diagnosis.late_rank(-1, last_launched_, calls_.options.timeout);
    calls_.diagnosis.time_out(calls_.options.timeout, late, last_launched_, runner.what());
  }
  if (message || lasted < suspicious_after) return;
  check_closed();
  const auto found = calls_.diagnosis.first_disagreement();
  if (found && found == progress.disagreement) {
    disagree();
  }
  progress.disagreement = found;
}

// A message that was left by a peer before it closed arrives within this time.
void Watch::check_closed(const Transfer& message) const {
  if (message.peer == calls_.rank || !calls_.transport->closed(message.peer)) return;
  throw Failure(Cause::peer_lost, message.peer,
                "rank " + std::to_string(message.peer) + " closed its communicator while rank " +
                    std::to_string(calls_.rank) + " was waiting for it in " + in_words(message, calls_.rank));
}

// Names the ranks that made a different call, if the records show them.
void Watch::disagree() const {
  const auto found = calls_.diagnosis.first_disagreement();
  throw Disagreement{calls_.diagnosis.rank_that_called_otherwise(found.value_or(last_launched_))};
}

// A rank that closed before a call that this rank has made will never make it. Its last messages have arrived
// by now.
void Watch::check_closed() const {
  for (int peer = 0; peer < calls_.world; ++peer) {
    if (peer == calls_.rank || !calls_.transport->closed(peer)) continue;
    const std::vector<Record> records = calls_.transport->records(peer);
    const std::uint64_t last = records.empty() ? 0 : records.back().sequence;
    if (last >= last_launched_) continue;
    throw Failure(Cause::peer_lost, peer,
                  "rank " + std::to_string(peer) + " closed its communicator while rank " +
                      std::to_string(calls_.rank) + " was waiting for it in a collective on its GPU");
  }
}

}  // namespace ringreduce
