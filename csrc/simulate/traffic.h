// Messages in flight over links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulate/moment.h"
#include "simulate/network.h"
#include "simulate/repetition.h"

namespace ringreduce {

// A route: consecutive links in Traffic's list.
struct Way {
  std::uint32_t first = 0, hops = 0;
};

struct Message {
  int from = 0, ahead = 0, slice = 0, round = 0;
  Way way;
  std::uint32_t hop = 0;  // the next link
  double pace = 0;        // seconds that it flows for at least: on its slowest link so far
  double bytes = 0;
  // When its first and its last byte reach the next link. In between it flows evenly.
  Moment first, last;

  bool has_arrived() const { return hop == way.hops; }
};

// The next event of a message. At the same time, the lowest order goes first.
struct Arrival {
  double at = 0;
  std::uint64_t order = 0;
  int number = 0;  // of the message
  bool operator<(const Arrival& other) const { return at != other.at ? at < other.at : order < other.order; }
};

class Traffic {
 public:
  // `ranks`: those that send; if fewer than the world, each link stands for those that turning by so many
  // ranks maps it to.
  Traffic(const Network& network, int ranks);

  Way way(int from, int to);
  // Sends a message; returns its number.
  int post(const Message& message);
  Message& at(int number) { return messages_[number]; }
  void forget(int number) { unused_.push_back(number); }

  // What a link was busy with.
  struct Busy {
    int link = 0;
    double begin = 0, end = 0;
  };
  // Takes a message over its next link, which serves messages in order of arrival. A message that comes more
  // slowly than the link's rate does not block others.
  Busy cross(int number);

  // Messages leave a link, or a rank, one after the other, so only the first of each must be looked at.
  // Returns whether this message is the first of those from the same place, or overtakes them.
  bool line_up(int number, const Arrival& arrival);
  // Takes a message out of its line; returns the one behind it, or nullptr.
  const Arrival* leave_line(int number);

  // Of messages that reach a link or a receiver at the same time, the lowest goes first. The order is the
  // same on all links, and for all receivers, that turning maps onto each other.
  std::uint64_t order(int number) const;

  std::vector<double> busy;  // by link: seconds

 private:
  struct Line {
    std::vector<Arrival> arrivals;
    std::size_t front = 0;
  };
  Line& line_of(const Message& message);

  const Network& network_;
  const Turned turned_;
  std::vector<int> same_as_;  // by link: its representative
  Routes routes_;
  std::vector<int> ways_;     // links
  std::vector<Moment> free_;  // by link
  std::vector<Line> lines_;   // by link; after these, by rank
  std::vector<Message> messages_;
  std::vector<int> unused_;  // of these messages
};

}  // namespace ringreduce
