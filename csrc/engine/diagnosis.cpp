// What the communicator says when a group fails: which rank is late, and who called what.
#include <algorithm>
#include <map>
#include <sstream>

#include "engine/communicator.h"

namespace ringreduce {

// The rank to blame for a collective that does not end: the one waited for, unless it waits itself for
// another that has not come so far.
int Communicator::latest_rank() const {
  const auto late = [&](int r) {
    const auto records = transport_->records(r);
    return records.empty() || records.back().sequence < sequence_;
  };
  const int waiting_for = executor_.waiting_for();
  if (waiting_for >= 0 && late(waiting_for)) return waiting_for;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && late(r)) return r;
  }
  return waiting_for;
}

int Communicator::latest() const {
  const auto begun = [&](int r) {
    const auto records = transport_->records(r);
    return records.empty() ? 0 : records.back().sequence;
  };
  int latest = rank_;
  for (int r = 0; r < size_; ++r) {
    if (begun(r) < begun(latest)) latest = r;
  }
  return latest == rank_ ? -1 : latest;
}

// Says what every rank did lately, for a person who must find out which of them went wrong.
void Communicator::time_out(Clock::duration timeout, int waiting_for, const std::string& what) const {
  std::ostringstream text;
  text << "rank " << rank_ << " timed out after " << std::chrono::duration<double>(timeout).count()
       << " s waiting for " << (waiting_for < 0 ? "any rank" : "rank " + std::to_string(waiting_for))
       << " in " << what << ". Last collectives of every rank:";
  for (int peer = 0; peer < size_; ++peer) {
    text << "\n  rank " << peer << ":";
    const auto records = transport_->records(peer);
    if (records.empty()) text << " none yet";
    for (std::size_t i = records.size() > 3 ? records.size() - 3 : 0; i < records.size(); ++i) {
      text << " #" << records[i].sequence << " " << in_words(records[i]) << ";";
    }
  }
  throw Failure(Cause::timeout, waiting_for, text.str());
}

// A message that waits unasked for may have the tag that was meant.
void Communicator::time_out(const Request& request) const {
  std::string what = in_words(request.transfer, rank_);
  const std::string others =
      request.transfer.sends ? "" : point_to_point_.not_asked_for(request.transfer.peer);
  if (!others.empty()) what += " (came, but was not asked for: " + others + ")";
  time_out(or_default(request.transfer.timeout), request.peer, what);
}

// The first call, of those still on record, that two ranks made differently, or none.
std::optional<std::uint64_t> Communicator::first_disagreement() const {
  std::map<std::uint64_t, std::uint64_t> histories;
  std::optional<std::uint64_t> first;
  for (int r = 0; r < size_; ++r) {
    for (const Record& record : transport_->records(r)) {
      const auto known = histories.emplace(record.sequence, record.history).first;
      if (known->second != record.history) first = std::min(first.value_or(record.sequence), record.sequence);
    }
  }
  return first;
}

// Another one than this.
int Communicator::rank_that_called_otherwise(std::uint64_t number) const {
  std::vector<std::uint64_t> histories(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    for (const Record& record : transport_->records(rank)) {
      if (record.sequence == number) histories[rank] = record.history;
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (histories[rank] != 0 && histories[rank] != histories[rank_]) return rank;
  }
  return rank_ == 0 ? size_ - 1 : 0;  // by now they have gone on
}

// Every rank's call of a number, in words; empty: it has not come so far, as far as is known here.
std::vector<std::string> Communicator::calls_numbered(std::uint64_t number) const {
  std::vector<std::string> calls(static_cast<std::size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    for (const Record& record : transport_->records(r)) {
      if (record.sequence == number) calls[r] = in_words(record);
    }
  }
  return calls;
}

// Every rank's call of the same number; a rank that has not come so far is given a moment to do so.
std::string Communicator::disagreement(int peer) const {
  const auto patience = Clock::now() + std::chrono::milliseconds(100);
  std::uint64_t number = sequence_;
  std::vector<std::string> calls;
  for (bool complete = false; !complete;) {
    const auto found = first_disagreement();
    number = found.value_or(sequence_);
    calls = calls_numbered(number);
    complete = (found && std::none_of(calls.begin(), calls.end(), [](auto& call) { return call.empty(); })) ||
               Clock::now() > patience;
    if (!complete) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ostringstream text;
  text << "the ranks disagree about call #" << number << ":";
  for (int r = 0; r < size_; ++r) {
    text << " rank " << r << ": " << (calls[r].empty() ? "has not made it" : calls[r]) << ";";
  }
  text << " rank " << rank_ << " noticed it at rank " << peer;
  return text.str();
}

// What else there is to say where the calls agree, but not on what one rank sends to another.
std::string Communicator::lengths(const ContractBroken& broken) {
  if (!broken.same_call) return "";
  return " by a message of " + std::to_string(broken.bytes) + " bytes, where " +
         std::to_string(broken.expected_bytes) + " were expected";
}

}  // namespace ringreduce
