#include "simulate/traffic.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ringreduce {

Traffic::Traffic(const Network& network, int ranks)
    : busy(network.links.size()),
      network_(network),
      turned_(turned_links(network)),
      routes_(network),
      free_(network.links.size()),
      lines_(network.links.size() + network.node_of.size()) {
  // By the first link among those that turning maps onto each other, and the number of turns from it.
  std::map<std::pair<int, int>, int> links;
  const int turns = network.period == 0 ? 1 : ranks / network.period;
  for (std::size_t link = 0; link < network.links.size(); ++link) {
    const std::pair<int, int> place = {turned_.first[link], turned_.turns[link]};
    links[place] = static_cast<int>(link);
  }
  for (std::size_t link = 0; link < network.links.size(); ++link)
    same_as_.push_back(links[{turned_.first[link], turned_.turns[link] % turns}]);
}

Way Traffic::way(int from, int to) {
  const std::size_t first = ways_.size();
  routes_.find(network_.node_of[from], network_.node_of[to], ways_);
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(ways_.size() - first)};
}

int Traffic::post(const Message& message) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<int>(messages_.size()));
    messages_.emplace_back();
  }
  const int number = unused_.back();
  unused_.pop_back();
  messages_[number] = message;
  return number;
}

Traffic::Busy Traffic::cross(int number) {
  Message& message = messages_[number];
  const int place = ways_[message.way.first + message.hop++], same = same_as_[place];
  const Link& link = network_.links[place];
  const double seconds = message.bytes / link.rate;
  Moment& free = free_[same];
  if (!(message.first.at < free.at)) free = message.first;
  const double began = free.at;
  free.spend(seconds, Component::transfer);
  busy[same] += seconds;
  if (message.last.at < free.at) message.last = free;
  message.pace = std::max(message.pace, seconds);
  if (message.last.at - message.pace > message.first.at) {
    message.first = message.last;
    message.first.spend(-message.pace, Component::transfer);
  }
  message.last.spend(link.latency, Component::latency);
  message.first.spend(link.latency, Component::latency);
  return {place, began, free.at};
}

Traffic::Line& Traffic::line_of(const Message& message) {
  return lines_[message.hop == 0 ? network_.links.size() + message.from
                                 : same_as_[ways_[message.way.first + message.hop - 1]]];
}

bool Traffic::line_up(int number, const Arrival& arrival) {
  Line& line = line_of(messages_[number]);
  const bool is_empty = line.front == line.arrivals.size();
  if (is_empty) {
    line.arrivals.clear();
    line.front = 0;
  } else if (arrival < line.arrivals.back()) {
    return true;
  }
  line.arrivals.push_back(arrival);
  return is_empty;
}

const Arrival* Traffic::leave_line(int number) {
  Line& line = line_of(messages_[number]);
  if (line.front == line.arrivals.size() || line.arrivals[line.front].number != number) return nullptr;
  if (++line.front == line.arrivals.size()) return nullptr;
  if (line.front > 1000 && line.front > line.arrivals.size() / 2) {
    line.arrivals.erase(line.arrivals.begin(),
                        line.arrivals.begin() + static_cast<std::ptrdiff_t>(line.front));
    line.front = 0;
  }
  const Arrival& next = line.arrivals[line.front];
  // Prefetches it for its event: few of millions of messages are in the cache.
  for (std::size_t byte = 0; byte < sizeof(Message); byte += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(&messages_[next.number]) + byte);
  return &next;
}

std::uint64_t Traffic::order(int number) const {
  const Message& message = messages_[number];
  const int world = network_.world();
  if (message.has_arrived()) return static_cast<std::uint64_t>(world - message.ahead);
  const int turned = turned_.turns[ways_[message.way.first + message.hop]] * network_.period;
  return static_cast<std::uint64_t>((message.from + world - turned) % world);
}

}  // namespace ringreduce
