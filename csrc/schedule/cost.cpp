#include <sstream>
#include <utility>

#include "schedule/check.h"

namespace ringreduce {
namespace {

void write(std::ostream& out, const Span& span) {
  out << span.first;
  if (span.count > 1) out << '-' << span.first + span.count - 1;
}

void write(std::ostream& out, const std::vector<Span>& spans) {
  out << (chunks_in(spans) == 0 ? "nothing" : chunks_in(spans) == 1 ? "chunk " : "chunks ");
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) out << ',';
    write(out, spans[i]);
  }
}

void write(std::ostream& out, const Round& round) {
  const char* separator = " ";
  const auto next = [&]() -> std::ostream& { return out << std::exchange(separator, "; "); };
  for (const Send& send : round.sends) {
    next() << "send ";
    write(out, send.chunks);
    out << " to ";
    for (std::size_t i = 0; i < send.peers.size(); ++i) out << (i > 0 ? "," : "") << send.peers[i];
  }
  for (const Recv& recv : round.recvs) {
    next() << (recv.reduce ? "add " : "receive ");
    write(out, recv.chunks);
    out << " from " << recv.peer;
  }
  for (const Local& local : round.locals) {
    next() << (local.reduce ? "add " : "copy ");
    write(out, local.from);
    out << " to ";
    write(out, local.to);
  }
}

}  // namespace

Cost cost(const Schedule& schedule) {
  Cost cost{.rounds = static_cast<int>(schedule.rounds.size())};
  long sent = 0, received = 0;
  for (const Round& round : schedule.rounds) {
    for (const Send& send : round.sends)
      sent += chunks_in(send.chunks) * static_cast<long>(send.peers.size());
    for (const Recv& recv : round.recvs) received += chunks_in(recv.chunks);
  }
  if (schedule.chunks > 0) {
    cost.sent = static_cast<double>(sent) / schedule.chunks;
    cost.received = static_cast<double>(received) / schedule.chunks;
  }
  return cost;
}

std::string describe(const Schedule& schedule) {
  std::ostringstream out;
  out << name_of(schedule.collective) << ", rank " << schedule.rank << " of " << schedule.world;
  if (schedule.root != 0) out << ", root " << schedule.root;
  out << ", " << schedule.chunks << (schedule.chunks == 1 ? " chunk" : " chunks");
  if (schedule.scratch > 0) out << " + " << schedule.scratch << " scratch";
  for (std::size_t k = 0; k < schedule.rounds.size(); ++k) {
    out << "\nround " << k << ':';
    write(out, schedule.rounds[k]);
  }
  return out.str();
}

}  // namespace ringreduce
