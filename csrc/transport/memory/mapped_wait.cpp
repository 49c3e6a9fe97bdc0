// How MappedTransport waits and fails: when to spin, yield and sleep, who is alive, who aborted.
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

#include "transport/interface/wait.h"
#include "transport/memory/mapped.h"

namespace ringreduce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::uint32_t busy_polls = 64;  // polls before the first pause instruction
constexpr std::uint32_t look_every = 64;  // pauses or yields between two looks at the clock
constexpr std::uint32_t spins_between_yields = 64;
constexpr std::uint32_t few_spins = 256;  // if others want the core
constexpr milliseconds sleep_after{1};    // then yielding turns into sleeping
constexpr milliseconds long_absence{1};   // for a thread that has yielded
constexpr int absence = 64;               // the number of short yields that make up for a long one
constexpr int explained_absence = 16;     // if a peer that computes may have caused it
constexpr int many_absences = 4 * absence, most_absences = 8 * absence;
constexpr milliseconds crowded_for{25}, crowded_at_most{200};
constexpr milliseconds check_peers_every{10};

std::uint64_t pack(const Failure& failure, int reporter) {
  return static_cast<std::uint64_t>(failure.cause) << 56 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(failure.culprit + 1) & 0xffffff) << 24 |
         static_cast<std::uint64_t>(reporter);
}

}  // namespace

// Another program's thread, or a thread of this rank that computes, may want our core. A thread that yields
// to it stays away for a whole slice of the scheduler, several milliseconds, whereas a sleeping thread is
// preferred when it is woken. Once a yield has taken long, the thread therefore sleeps at once, and tries
// yielding again now and then. Ranks that share a core must yield to each other, which is quicker, but may
// also take long while one computes. In that case it takes several long yields, with few short ones between
// them.
bool MappedTransport::pause(Backoff& backoff, int waiting_for) {
  const std::uint32_t round = backoff.rounds++;
  const bool crowded = crowded_.load(order::relaxed);
  if (round < (crowded ? std::min(few_spins, spins_) : spins_)) {
    if (round < busy_polls) return false;
    if (round % look_every == 0) check();
    relax();
    return false;
  }
  if (backoff.sleepers) {
    sleep(backoff);
  } else if (!crowded) {
    // Giving our core away would take longer than a peer that is running on another core.
    if (waiting_for >= 0 && (round + 1) % spins_between_yields != 0 && runs_elsewhere(waiting_for)) {
      relax();
      return false;
    }
    backoff.away += give_way();
    if (++backoff.yields % look_every != 0) return false;
  }
  check();
  const auto now = Clock::now();
  if (backoff.since == Clock::time_point()) backoff.since = backoff.checked = now;
  if (now - backoff.checked >= check_peers_every) {
    backoff.checked = now;
    say_whom_we_wait_for(waiting_for < 0 ? -1 : name_of(waiting_for), now);
    check_peers(backoff, waiting_for);
  }
  if (crowded && now > crowded_until_.load(order::relaxed)) {
    crowded_.store(false, order::relaxed);
  }
  if (!backoff.sleepers && (crowded || now - backoff.since >= patience_ * sleep_after)) {
    // Peers ring from now on. The caller looks once more before the first sleep.
    Doorbell& bell = doorbell(rank);
    backoff.sleepers = &bell.sleepers;
    bell.sleepers.fetch_add(1, order::asleep);
    backoff.armed = bell.rung.load(order::armed);
  }
  return true;
}

// Whether some rank has not begun this rank's current call.
bool MappedTransport::a_peer_is_late() const {
  const std::uint32_t mine = header(rank).record_next.load(order::relaxed);
  for (int peer = 0; peer < world; ++peer) {
    if (header(peer).record_next.load(order::relaxed) < mine) return true;
  }
  return false;
}

bool MappedTransport::runs_elsewhere(int peer) const {
  return !shares_core(peer) && !(facts_.oversubscribed && doorbell(peer).away.load(order::relaxed));
}

// Adds the time that this rank has run to that of its core, and returns the latter. Only one rank at a time
// runs on a core, so there is no other writer, unless the scheduler has moved this rank: then a count may be
// lost, which does no harm. Relaxed order suffices: nothing else depends on the counts, and what a core has
// written, it reads after a switch.
std::atomic<std::int64_t>& MappedTransport::leave_core(Clock::time_point now) {
  std::atomic<std::int64_t>& ran =
      header(0).busy[static_cast<unsigned>(core_.load(order::relaxed)) % cores_told].ran;
  const auto running = std::min<Clock::duration>(now - resumed_.load(order::relaxed), long_absence);
  ran.store(ran.load(order::relaxed) + running / nanoseconds(1), order::relaxed);
  doorbell(rank).away.store(true, order::relaxed);
  return ran;
}

void MappedTransport::back_on_core(Clock::time_point now) {
  Doorbell& own = doorbell(rank);
  own.away.store(false, order::relaxed);
  resumed_.store(now, order::relaxed);
  const int core = sched_getcpu();
  if (core != core_.load(order::relaxed)) {
    core_.store(core, order::relaxed);
    own.core.store(core, order::relaxed);
  }
}

// Returns the time that it took. The time that other ranks of the group ran does not show that another
// program wants the core.
Clock::duration MappedTransport::give_way() {
  const auto before = Clock::now();
  std::atomic<std::int64_t>& ran = leave_core(before);
  const std::int64_t told = ran.load(order::relaxed);
  sched_yield();
  const auto after = Clock::now();
  back_on_core(after);
  const int known = absences_.load(order::relaxed);
  if (after - before >= long_absence &&
      after - before - nanoseconds(ran.load(order::relaxed) - told) >= long_absence) [[unlikely]] {
    const int found = known + (facts_.oversubscribed && a_peer_is_late() ? explained_absence : absence);
    absences_.store(std::min(found, most_absences), order::relaxed);
    if (found >= (facts_.oversubscribed ? many_absences : absence)) crowded(after);
  } else if (known > 0) {
    absences_.store(known - 1, order::relaxed);
  }
  return after - before;
}

// Longer each time that crowding returns soon.
void MappedTransport::crowded(Clock::time_point now) {
  const auto last = crowded_span_.load(order::relaxed);
  const bool soon = now - crowded_until_.load(order::relaxed) < last;
  const auto span = soon ? std::min<Clock::duration>(2 * last, crowded_at_most) : crowded_for;
  crowded_span_.store(span, order::relaxed);
  crowded_until_.store(now + span, order::relaxed);
  crowded_.store(true, order::relaxed);
}

void MappedTransport::sleep(Backoff& backoff) {
  Doorbell& bell = doorbell(rank);
  const auto before = Clock::now();
  const auto waited = std::chrono::duration_cast<microseconds>(before - backoff.since);
  const auto longest = std::chrono::duration_cast<microseconds>(backoff.longest_sleep);
  leave_core(before);  // ranks that still yield would otherwise take this one for another program
  futex_wait(bell.rung, backoff.armed, std::min(std::max(waited / 4, microseconds(500)), longest));
  backoff.armed = bell.rung.load(order::armed);
  const auto after = Clock::now();
  back_on_core(after);
  backoff.away += after - before;
}

// A peer that died without closing can never finish what it began. One that closed has sent everything, so
// only a wait for it fails.
void MappedTransport::check_peers(Backoff& backoff, int waiting_for) {
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank || alive(peer) || closed(peer)) continue;
    throw Failure(Cause::peer_lost, name_of(peer), in_words(peer) + " died");
  }
  check_agreement();
  if (waiting_for >= 0 && closed(waiting_for)) {
    backoff.found_closed(waiting_for, name_of(waiting_for), name_of(rank));
  }
}

// Ranks that made different calls may all wait, or send without ever receiving, so that no reader meets a
// wrong message. A rank that waits for long therefore compares the last call that both it and a peer have
// begun.
void MappedTransport::check_agreement() {
  const Header& own = header(rank);
  const std::uint32_t depth = layout_.record_depth;
  const std::uint32_t mine = own.record_next.load(order::calls_seen);
  for (int peer = 0; peer < world; ++peer) {
    const Header& other = header(peer);
    const std::uint32_t theirs = other.record_next.load(order::calls_seen);
    const std::uint32_t common = std::min(mine, theirs);
    if (common == 0) continue;
    const std::uint32_t place = (common - 1) & (depth - 1);
    const std::uint64_t here = own.histories[place].load(order::relaxed);
    const std::uint64_t there = other.histories[place].load(order::relaxed);
    std::atomic_thread_fence(order::history_seen);
    // A later call may have overwritten either by now.
    const std::uint32_t latest =
        std::max(own.record_next.load(order::relaxed), other.record_next.load(order::relaxed));
    if (here != there && latest - common < depth - 1) throw Disagreement{name_of(peer)};
  }
}

void MappedTransport::check() {
  const std::uint64_t word = header(rank).aborted.load(order::abort_seen);
  if (word != 0) [[unlikely]]
    hear_abort(word);
  fate().check();
}

// A peer's words are trusted no more than necessary.
void MappedTransport::hear_abort(std::uint64_t word) {
  if (fate().failure()) return;
  const auto culprit = static_cast<int>(word >> 24 & 0xffffff) - 1;
  const auto reporter = static_cast<int>(word & 0xffffff);
  const Header& theirs = header(reporter < world ? reporter : rank);
  fate().fail(Failure(cause_numbered(word >> 56), culprit,
                      std::string(theirs.reason, strnlen(theirs.reason, sizeof theirs.reason))));
}

// The first to report wins, rank by rank. A rank that reads an abort word finds the reason at its reporter.
// A rank that was told passes the word on: the reporter may have lost its core before it told everyone, and
// a rank that sees this one close must know why.
void MappedTransport::abort(const Failure& found) {
  const Failure failure = fate().fail(found);
  Header& own = header(rank);
  std::uint64_t word = own.aborted.load(order::abort_seen);
  if (word == 0) {
    std::string reason = failure.what();
    reason.resize(std::min(reason.size(), sizeof own.reason - 1));
    std::memcpy(own.reason, reason.c_str(), reason.size() + 1);
    word = pack(failure, rank);
  }
  for (int peer = 0; peer < world; ++peer) {
    std::uint64_t none = 0;
    header(peer).aborted.compare_exchange_strong(none, word, order::abort_told);
    doorbell(peer).rung.fetch_add(1, order::rung);
    futex_wake(doorbell(peer).rung);
  }
  await_accesses();
}

// Either this rank sees the abort word, or the rank that has written the word sees this access.
void MappedTransport::begin_access() {
  Header& own = header(rank);
  own.accesses.fetch_add(1, order::access_begun);
  if (own.aborted.load(order::abort_seen_by_access) == 0) [[likely]]
    return;
  end_access();
  check();
}

void MappedTransport::await_accesses() {
  const auto start = Clock::now();
  for (int peer = 0; peer < world; ++peer) {
    if (peer == rank) continue;
    while (header(peer).accesses.load(order::accesses_seen) != 0 && alive(peer) &&
           Clock::now() - start < longest_access()) {
      std::this_thread::yield();
    }
  }
  std::atomic_thread_fence(order::abort_is_out);
}

// --- the agreement on survivors --------------------------------------------------------------------------

void MappedTransport::show(const Board& board) {
  if (world > most_surviving) {
    throw InvalidArgument("shrink() supports at most " + std::to_string(most_surviving) + " ranks");
  }
  const std::string text = packed(board);
  SharedBoard& own = header(rank).board;
  const std::uint32_t version = own.version.load(order::relaxed);
  own.version.store(version + 1, order::relaxed);
  std::atomic_thread_fence(order::board_opened);
  own.bytes.store(static_cast<std::uint32_t>(text.size()), order::relaxed);
  for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    own.words[at / sizeof word].store(word, order::relaxed);
  }
  own.version.store(version + 2, order::board_written);
}

// Empty if the rank died while it wrote.
Board MappedTransport::board(int of_rank) {
  const SharedBoard& theirs = header(of_rank).board;
  std::string text;
  for (int tries = 0; tries < 1000; ++tries, relax()) {
    const std::uint32_t before = theirs.version.load(order::board_seen);
    if (before == 0) return {};
    if (before % 2 == 1) continue;
    text.assign(std::min<std::size_t>(theirs.bytes.load(order::relaxed), sizeof theirs.words), '\0');
    for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = theirs.words[at / sizeof word].load(order::relaxed);
      std::memcpy(text.data() + at, &word, std::min(sizeof word, text.size() - at));
    }
    std::atomic_thread_fence(order::board_read);
    if (theirs.version.load(order::relaxed) == before) {
      return unpacked(text, world).value_or(Board());
    }
  }
  return {};
}

void MappedTransport::await_boards(int waiting_for) {
  say_whom_we_wait_for(name_of(waiting_for), Clock::now());
  std::this_thread::sleep_for(microseconds(200));
}

// --- the rank waited for -----------------------------------------------------------------------------------

void MappedTransport::say_whom_we_wait_for(int name, Clock::time_point now) {
  Doorbell& own = doorbell(rank);
  own.waiting_for.store(name, order::relaxed);
  own.said.store(now, order::said);
}

std::optional<int> MappedTransport::waits_for(int of_rank, Clock::duration lately) const {
  const Doorbell& theirs = doorbell(of_rank);
  if (Clock::now() - theirs.said.load(order::said_seen) > lately) return std::nullopt;
  return theirs.waiting_for.load(order::relaxed);
}

void MappedTransport::close() {
  if (disowned_) return;
  header(rank).closed.store(1, order::all_sent);
  for (int peer = 0; peer < world; ++peer) ring(peer);
}

}  // namespace ringreduce
