#include "engine/point_to_point.h"

namespace ringreduce {
namespace {

constexpr std::size_t slice_bytes = 256 << 10;

// A transfer is a broadcast that knows one peer: the sender's end or the receiver's.
Schedule one_message(const Transport& transport, bool sends, int peer) {
  Schedule schedule;
  schedule.collective = Collective::broadcast;
  schedule.world = transport.world;
  schedule.rank = transport.rank;
  schedule.root = sends ? transport.rank : peer;
  Round round;
  if (sends) round.sends.push_back({{{0, 1}}, {peer}});
  if (!sends) round.recvs.push_back({{{0, 1}}, peer, false});
  schedule.rounds.push_back(std::move(round));
  return schedule;
}

}  // namespace

std::string in_words(const Transfer& t, int rank) {
  const std::string what = std::string(name_of(t.dtype)) + "[" + std::to_string(t.count) + "]";
  const std::string tag = t.tag ? ", tag " + std::to_string(t.tag) : "";
  return t.sends ? "send(" + what + tag + ") from rank " + std::to_string(rank) + " to rank " +
                       std::to_string(t.peer)
                 : "recv(" + what + tag + ") by rank " + std::to_string(rank) + " from rank " +
                       std::to_string(t.peer);
}

PointToPoint::PointToPoint(Transport& transport) : transport_(transport), queues_(2 * transport.world) {}

std::shared_ptr<PointToPoint::Job> PointToPoint::enqueue(const Transfer& transfer) {
  auto job = std::make_shared<Job>();
  job->transfer = transfer;
  std::lock_guard lock(mutex_);
  queue(transfer.sends, transfer.peer).jobs.push_back(job);
  ++waiting_;
  return job;
}

bool PointToPoint::advance() {
  std::lock_guard lock(mutex_);
  bool moved = false;
  if (waiting_ == 0) return false;
  for (Queue& q : queues_) {
    if (!q.jobs.empty()) moved |= advance(q);
  }
  return moved;
}

bool PointToPoint::advance(Queue& q) {
  Job& job = *q.jobs.front();
  if (!job.started) start(q, job);
  bool moved = false;
  try {
    moved = job.executor->advance();
  } catch (const ContractBroken& broken) {
    const std::string text = in_words(job.transfer, transport_.rank) + " does not match what rank " +
                             std::to_string(job.transfer.peer) + " sent: " +
                             (broken.same_call ? "their lengths differ" : "its count, dtype or tag differs");
    job.problem = std::make_exception_ptr(Failure(Cause::mismatch, job.transfer.peer, text));
  }
  if (!job.executor->done() && !job.problem) return moved;
  job.done = true;
  idle_.push_back(std::move(job.executor));
  q.jobs.pop_front();
  --waiting_;
  return true;
}

void PointToPoint::start(Queue& q, Job& job) {
  const Transfer& t = job.transfer;
  if (!q.program) q.program = std::make_unique<Program>(lower(one_message(transport_, t.sends, t.peer), 1));
  if (idle_.empty()) idle_.push_back(std::make_unique<Executor>(transport_));
  job.executor = std::move(idle_.back());
  idle_.pop_back();
  Task task;
  task.program = q.program.get();
  job.geometry = make_geometry(*q.program, size_of(t.dtype), t.count, slice_bytes, transport_.capacity());
  job.full.resolve(*q.program, job.geometry, 0);
  job.last_slice.resolve(*q.program, job.geometry, job.geometry.slices - 1);
  task.geometry = &job.geometry;
  task.full = &job.full;
  task.last_slice = &job.last_slice;
  task.input = static_cast<const std::byte*>(t.sends ? t.input : t.output);
  task.output = const_cast<std::byte*>(task.input);
  task.lend_from = slice_bytes;
  task.bytes = t.count * size_of(t.dtype);
  task.input_reachable = transport_.reachable(task.input, t.count * size_of(t.dtype));
  task.contract = (static_cast<std::uint64_t>(t.tag) << 32 ^ t.count) * 0x9e3779b97f4a7c15ull +
                  size_of(t.dtype) * 16 + static_cast<std::uint64_t>(t.dtype) + 1;
  task.first_lane = Transport::point_to_point_lane;
  task.lanes = 1;
  job.executor->start(task);
  job.started = true;
}

bool PointToPoint::done(const Job& job) {
  std::lock_guard lock(mutex_);
  return job.done;
}

void PointToPoint::drop(std::exception_ptr problem) {
  std::lock_guard lock(mutex_);
  for (Queue& q : queues_) {
    for (const auto& job : q.jobs) {
      job->problem = problem;
      job->done = true;
      if (job->executor) idle_.push_back(std::move(job->executor));
    }
    q.jobs.clear();
  }
  waiting_ = 0;
}

}  // namespace ringreduce
