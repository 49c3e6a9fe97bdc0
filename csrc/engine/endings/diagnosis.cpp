#include "engine/endings/diagnosis.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <thread>

#include "engine/planning/description.h"

namespace ringreduce {

std::uint64_t Diagnosis::begun(int rank) const {
  const auto records = transport_.records(rank);
  return records.empty() ? 0 : records.back().sequence;
}

// The rank waited for may itself wait: for a rank that computes, that is stopped, or that has not come so
// far. Such a rank has been silent for most of the time.
int Diagnosis::late_rank(int waiting_for, std::uint64_t number, Clock::duration waited) const {
  const auto next_of = [&](int rank) { return transport_.waits_for(rank, waited / 4 * 3).value_or(-1); };
  std::vector<bool> seen(static_cast<std::size_t>(transport_.world));
  int rank = waiting_for;
  while (rank >= 0 && rank < transport_.world && rank != transport_.rank && !seen[rank]) {
    begun(rank);  // asks the rank, if the transport must ask
    const int next = next_of(rank);
    if (next < 0) return rank;
    seen[rank] = true;
    rank = next;
  }
  int late = waiting_for;
  for (rank = 0; rank < transport_.world; ++rank) {
    if (rank == transport_.rank || begun(rank) >= number) continue;
    late = rank;
    if (next_of(rank) < 0) break;
  }
  return late;
}

int Diagnosis::last_rank() const {
  int last = transport_.rank;
  for (int rank = 0; rank < transport_.world; ++rank) {
    if (begun(rank) < begun(last)) last = rank;
  }
  return last == transport_.rank ? -1 : last;
}

// For example "rank 3 has not made this call, its last is #1040, barrier(); rank 0 and rank 2 have made it".
std::string Diagnosis::who_has_come(int late, std::uint64_t number) const {
  constexpr std::size_t most_named = 8;
  const std::string name = "rank " + std::to_string(late);
  const auto records = transport_.records(late);
  const std::string last =
      records.empty() ? "" : "#" + std::to_string(records.back().sequence) + ", " + in_words(records.back());
  std::string text = name;
  if (number == 0) {
    if (last.empty()) return "";
    return text + "'s last collective is " + last;
  }
  if (begun(late) < number) {
    text += " has not made this call, " + (last.empty() ? "nor any that is known" : "its last is " + last);
  } else if (begun(late) > number) {
    text += " has made this call, and is in " + last;
  } else {
    text += " has made this call, but does not continue: it works, is stopped, or waits outside this group";
  }
  std::vector<std::string> others;
  for (int rank = 0; rank < transport_.world; ++rank) {
    if (rank != late && begun(rank) >= number) others.push_back("rank " + std::to_string(rank));
  }
  if (others.size() > most_named)
    return text + "; " + std::to_string(others.size()) + " other ranks have made it";
  for (std::size_t i = 0; i < others.size(); ++i) {
    text += (i == 0 ? "; " : i + 1 < others.size() ? ", " : " and ") + others[i];
  }
  return others.empty() ? text : text + (others.size() == 1 ? " has made it" : " have made it");
}

std::string Diagnosis::latest_call(int late) const {
  const std::uint64_t number = begun(transport_.rank);
  return number == 0 ? "no call" : own_call() + ": " + who_has_come(late, number);
}

std::string Diagnosis::own_call() const {
  const auto own = transport_.records(transport_.rank);
  if (own.empty()) return "no call";
  return "call #" + std::to_string(own.back().sequence) + ", " + in_words(own.back());
}

std::string Diagnosis::last_words(int rank) const {
  const auto records = transport_.known_records(rank);
  if (records.empty()) return ", of which no call is known";
  return ", whose last known call is #" + std::to_string(records.back().sequence) + ", " +
         in_words(records.back());
}

void Diagnosis::time_out(Clock::duration timeout, int waiting_for, std::uint64_t number,
                         const std::string& what) const {
  const std::string who = waiting_for < 0 ? "" : who_has_come(waiting_for, number);
  std::ostringstream text;
  text << "rank " << transport_.rank << " timed out after " << std::chrono::duration<double>(timeout).count()
       << " s waiting for " << (waiting_for < 0 ? "any rank" : "rank " + std::to_string(waiting_for))
       << " in " << what << (who.empty() ? "" : ": ") << who << ". Last collectives of every rank:";
  for (int peer = 0; peer < transport_.world; ++peer) {
    text << "\n  rank " << peer << ":";
    const auto records = transport_.records(peer);
    if (records.empty()) text << " none known";
    for (std::size_t i = records.size() > 3 ? records.size() - 3 : 0; i < records.size(); ++i) {
      text << " #" << records[i].sequence << " " << in_words(records[i]) << ";";
    }
  }
  throw Failure(Cause::timeout, waiting_for, text.str());
}

std::optional<std::uint64_t> Diagnosis::first_disagreement() const {
  std::map<std::uint64_t, std::uint64_t> histories;
  std::optional<std::uint64_t> first;
  for (int r = 0; r < transport_.world; ++r) {
    for (const Record& record : transport_.records(r)) {
      const auto known = histories.emplace(record.sequence, record.history).first;
      if (known->second != record.history) first = std::min(first.value_or(record.sequence), record.sequence);
    }
  }
  return first;
}

int Diagnosis::rank_that_called_otherwise(std::uint64_t number) const {
  std::vector<std::uint64_t> histories(static_cast<std::size_t>(transport_.world));
  for (int rank = 0; rank < transport_.world; ++rank) {
    for (const Record& record : transport_.records(rank)) {
      if (record.sequence == number) histories[rank] = record.history;
    }
  }
  for (int rank = 0; rank < transport_.world; ++rank) {
    if (histories[rank] != 0 && histories[rank] != histories[transport_.rank]) return rank;
  }
  return transport_.rank == 0 ? transport_.world - 1 : 0;  // by now they have continued
}

// The call with this number in words, by rank; empty if a rank is not known to have reached it.
std::vector<std::string> Diagnosis::calls_numbered(std::uint64_t number) const {
  std::vector<std::string> calls(static_cast<std::size_t>(transport_.world));
  for (int r = 0; r < transport_.world; ++r) {
    for (const Record& record : transport_.records(r)) {
      if (record.sequence == number) calls[r] = in_words(record);
    }
  }
  return calls;
}

// Gives a rank that has not reached the call a moment to do so.
std::string Diagnosis::disagreement(int peer, std::uint64_t latest) const {
  const auto patience = Clock::now() + std::chrono::milliseconds(100);
  std::uint64_t number = latest;
  std::vector<std::string> calls;
  for (bool complete = false; !complete;) {
    const auto found = first_disagreement();
    number = found.value_or(latest);
    calls = calls_numbered(number);
    complete = (found && std::none_of(calls.begin(), calls.end(), [](auto& call) { return call.empty(); })) ||
               Clock::now() > patience;
    if (!complete) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ostringstream text;
  text << "the ranks disagree about call #" << number << ":";
  if (!calls[0].empty() && std::count(calls.begin(), calls.end(), calls[0]) == transport_.world) {
    text << " all called " << calls[0] << ", but the calls differ in the lengths of blocks, or a message "
         << "was damaged on the way;";
    calls.clear();
  }
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const bool past = calls[r].empty() && begun(static_cast<int>(r)) > number;
    if (calls[r].empty()) calls[r] = past ? "is many calls further" : "has not made this call";
    text << " rank " << r << ": " << calls[r] << ";";
  }
  text << " rank " << transport_.rank << " noticed this in a message from rank " << peer;
  return text.str();
}

}  // namespace ringreduce
