// Messages on their way over links.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

struct Message {
  int from = 0, ahead = 0, slice = 0, round = 0;
  double bytes = 0;
  // When it begins to come to the next link, and has come as a whole. In between it flows evenly.
  Moment first, last;
  double pace = 0;        // seconds that it flows for, at least: on its slowest link so far
  std::vector<int> path;  // links
  std::size_t hop = 0;    // the next one

  bool has_arrived() const { return hop == path.size(); }
};

class Traffic {
 public:
  // `turns`: only as many ranks send as the network's period has, and each link stands for all that turning
  // takes it to.
  Traffic(const Network& network, bool turns);

  // A message of a rank to the one so many ahead, which leaves at a moment; returns its number.
  int post(int from, int ahead, double bytes, const Moment& leaves);
  Message& at(int number) { return messages_[number]; }
  void forget(int number) { unused_.push_back(number); }

  // What a link was busy with.
  struct Busy {
    int link = 0;
    double begin = 0, end = 0;
  };
  // Over the next link, which serves messages in the order in which they come to it. One that comes more
  // slowly than the link is does not keep others from it.
  Busy cross(int number);

  // Of messages that come to a link, or to a receiver, at one time, the lowest goes first. It is the same
  // order on all links, and for all receivers, that turning takes to each other.
  std::uint64_t order(int number) const;

  std::vector<double> busy;  // by link: seconds

 private:
  const Network& network_;
  const Turned turned_;
  std::vector<int> same_as_;  // by link: the one that stands for it
  Routes routes_;
  std::vector<Moment> free_;  // by link
  std::vector<Message> messages_;
  std::vector<int> unused_;  // of these
};

}  // namespace ringreduce
