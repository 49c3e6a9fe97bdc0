#include "simulate/traffic.h"

#include <algorithm>

namespace ringreduce {

Traffic::Traffic(const Network& network, bool turns)
    : busy(network.links.size()),
      network_(network),
      turned_(turned_links(network)),
      routes_(network),
      free_(network.links.size()) {
  for (std::size_t link = 0; link < network.links.size(); ++link)
    same_as_.push_back(turns ? turned_.first[link] : static_cast<int>(link));
}

int Traffic::post(int from, int ahead, double bytes, const Moment& leaves) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<int>(messages_.size()));
    messages_.emplace_back();
  }
  const int number = unused_.back();
  unused_.pop_back();
  Message& message = messages_[number];
  message.from = from;
  message.ahead = ahead;
  message.bytes = bytes;
  message.first = message.last = leaves;
  message.pace = 0;
  message.hop = 0;
  const int to = (from + ahead) % network_.world();
  routes_.find(network_.node_of[from], network_.node_of[to], message.path);
  return number;
}

Traffic::Busy Traffic::cross(int number) {
  Message& message = messages_[number];
  const int place = message.path[message.hop++];
  const Link& link = network_.links[place];
  const double seconds = message.bytes / link.rate;
  Moment& free = free_[same_as_[place]];
  free = later(message.first, free);
  const double began = free.at;
  free.spend(seconds, Cause::transfer);
  busy[same_as_[place]] += seconds;
  message.last = later(message.last, free);
  message.pace = std::max(message.pace, seconds);
  if (message.last.at - message.pace > message.first.at) {
    message.first = message.last;
    message.first.spend(-message.pace, Cause::transfer);
  }
  message.last.spend(link.latency, Cause::latency);
  message.first.spend(link.latency, Cause::latency);
  return {place, began, free.at};
}

std::uint64_t Traffic::order(int number) const {
  const Message& message = messages_[number];
  const int world = network_.world();
  if (message.has_arrived()) return static_cast<std::uint64_t>(world - message.ahead);
  const int turned = turned_.turns[message.path[message.hop]] * network_.period;
  return static_cast<std::uint64_t>((message.from + world - turned) % world);
}

}  // namespace ringreduce
