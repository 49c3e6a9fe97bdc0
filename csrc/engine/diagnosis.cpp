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
void Communicator::time_out(const Job& job) const {
  std::string what = in_words(job.transfer, rank_);
  const std::string others = job.transfer.sends ? "" : point_to_point_.not_asked_for(job.transfer.peer);
  if (!others.empty()) what += " (came, but was not asked for: " + others + ")";
  time_out(or_default(job.transfer.timeout), job.peer, what);
}

// The first call, of those still on record, that two ranks made differently; else the current one.
std::uint64_t Communicator::first_disagreement() const {
  std::map<std::uint64_t, std::uint64_t> histories;
  const auto own = transport_->records(rank_);
  std::uint64_t first = own.empty() ? 1 : own.back().sequence;
  for (int r = 0; r < size_; ++r) {
    for (const Record& record : transport_->records(r)) {
      const auto known = histories.emplace(record.sequence, record.history).first;
      if (known->second != record.history) first = std::min(first, record.sequence);
    }
  }
  return first;
}

// Every rank's call of the same number; a rank that has not come so far is given a moment to do so.
std::string Communicator::disagreement(int peer) const {
  const std::uint64_t call = first_disagreement();
  std::ostringstream text;
  text << "the ranks disagree about call #" << call << ":";
  const auto patience = Clock::now() + std::chrono::milliseconds(100);
  for (int r = 0; r < size_; ++r) {
    std::string what;
    while (true) {
      for (const Record& record : transport_->records(r)) {
        if (record.sequence == call) what = in_words(record);
      }
      if (!what.empty() || Clock::now() > patience) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    text << " rank " << r << ": " << (what.empty() ? "has not made it" : what) << ";";
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
