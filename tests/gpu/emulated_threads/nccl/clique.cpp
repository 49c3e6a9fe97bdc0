#include "clique.h"

#include <algorithm>
#include <cstring>

namespace ringreduce::emulated {

void Clique::join() {
  const std::lock_guard lock(mutex_);
  ++joined_;
}

bool Clique::is_complete() {
  const std::lock_guard lock(mutex_);
  return joined_ == failures_.size();
}

void Clique::abort(int rank) {
  const std::lock_guard lock(mutex_);
  aborted_[rank] = 1;
  changed_.notify_all();
}

void Clique::fail(int rank, nccl::Result result) {
  const std::lock_guard lock(mutex_);
  failures_[rank] = result;
}

nccl::Result Clique::failure(int rank) {
  const std::lock_guard lock(mutex_);
  return failures_[rank];
}

// Receives come first: what is received into memory that this very group sends from arrives as early as it
// can.
void Clique::run(int rank, const std::vector<Operation>& operations) {
  std::unique_lock lock(mutex_);
  std::deque<Posted> all;
  for (const bool receives : {true, false}) {
    for (const Operation& operation : operations) {
      if ((operation.kind == Operation::Kind::receive) != receives) continue;
      all.push_back({&operation, rank});
      post(all.back());
    }
  }
  const auto over = [](const Posted& posted) { return posted.over; };
  changed_.wait(lock, [&] { return aborted_[rank] || std::all_of(all.begin(), all.end(), over); });
  for (const Posted& posted : all) {
    if (!posted.over) withdraw(posted);
  }
}

void Clique::post(Posted& posted) {
  const Operation& operation = *posted.operation;
  if (!operation.is_message()) return meet(posted);
  const bool sends = operation.kind == Operation::Kind::send;
  Way& way = ways_[sends ? std::pair(posted.rank, operation.peer) : std::pair(operation.peer, posted.rank)];
  (sends ? way.sends : way.receives).push_back(&posted);
  match(way);
}

void Clique::match(Way& way) {
  while (!way.sends.empty() && !way.receives.empty()) {
    Posted &from = *way.sends.front(), &to = *way.receives.front();
    const std::size_t bytes = from.operation->count * size_of(from.operation->type);
    if (bytes != to.operation->count * size_of(to.operation->type)) return;  // one end waits for more
    std::memmove(to.operation->to, from.operation->from, bytes);
    from.over = to.over = true;
    way.sends.pop_front();
    way.receives.pop_front();
    changed_.notify_all();
  }
}

void Clique::meet(Posted& posted) {
  const std::size_t number = next_meeting_[posted.rank]++;
  Meeting& meeting = meetings_[number];
  meeting.parts.resize(failures_.size());
  meeting.parts[posted.rank] = &posted;
  if (++meeting.here < failures_.size()) return;
  std::vector<const Operation*> parts;
  for (const Posted* part : meeting.parts) parts.push_back(part->operation);
  const bool fit =
      std::all_of(parts.begin(), parts.end(), [&](const Operation* part) { return part->fits(*parts[0]); });
  if (!fit) {
    std::fill(failures_.begin(), failures_.end(), nccl::invalid_usage);
    return;
  }
  perform(parts);
  for (Posted* part : meeting.parts) part->over = true;
  meetings_.erase(number);
  changed_.notify_all();
}

void Clique::withdraw(const Posted& posted) {
  for (auto& [ends, way] : ways_) {
    std::erase(way.sends, &posted);
    std::erase(way.receives, &posted);
  }
  for (auto& [number, meeting] : meetings_) {
    for (Posted*& part : meeting.parts) {
      if (part != &posted) continue;
      part = nullptr;
      meeting.here = 0;  // it takes place no more
    }
  }
}

}  // namespace ringreduce::emulated
