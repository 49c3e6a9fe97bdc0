// Times a collective on a described network: a discrete-event simulation of every rank's schedule.
//
// A rank's core does one thing at a time: for each message that it sends or takes in, and for each round, a
// fixed time, and for each byte one that depends on whether it is copied or combined. Ranks beyond a node's
// cores take turns. Messages go by the shortest route, and flow over all of its links at once, as fast as the
// slowest lets them. A link serves them in the order in which they come to it. Slices of the buffer run side
// by side, as many as there are lanes. So it is LogGP (Alexandrov et al., SPAA 1995) with links that are
// shared.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

// What messages up to a size take of the cores at their ends, in seconds.
struct MessageCost {
  double up_to = 0;                                          // bytes
  double send = 0, receive = 0;                              // of a message
  double send_byte = 0, receive_byte = 0, combine_byte = 0;  // what arrives is received or combined
  double latency = 0;                                        // beside that of the links
};

struct Question {
  double bytes = 0;        // of the whole buffer
  double slice_bytes = 0;  // of one round's messages in one slice; 0: one slice
  int lanes = 1;
  double round = 0;      // seconds of a core for each round
  double switching = 0;  // from one rank to another on one core
  // Of messages inside hosts and between them, by size; the last row is for all larger ones, and no row costs
  // nothing.
  std::vector<MessageCost> inside, between;
  double jitter = 0;  // seconds: the mean of an exponential delay of each message
  std::uint64_t seed = 0;
  std::vector<double> late;  // by rank: seconds after the first rank's beginning; empty: all begin at once
  // Where all slices take more, only the first ones are simulated, and the others taken to be like them.
  std::size_t most_messages = 2'000'000;
  std::size_t intervals = 0;  // how many to keep
};

enum class Activity : std::uint8_t { send, receive, local, transfer };
inline constexpr std::array<std::string_view, 4> activity_names = {"send", "receive", "local", "transfer"};

// What a rank's core, or of a transfer a link, was busy with.
struct Interval {
  Activity activity = Activity::send;
  int where = 0;  // rank or link
  int peer = 0, round = 0, slice = 0;
  double begin = 0, end = 0;
};

struct Answer {
  Moment end;         // of the last rank
  int simulated = 0;  // ranks; the others do the same as one of them
  int slices = 0, rounds = 0;
  int simulated_slices =
      0;  // fewer where that would take too many messages; the others take as long as the last ones
  std::uint64_t messages = 0;       // of the simulated ranks
  std::vector<double> ended;        // by simulated rank
  std::vector<double> busy_ranks;   // by simulated rank: seconds of its core
  std::vector<double> busy_links;   // by link; of links that carry the same only the first
  std::vector<Interval> intervals;  // the first ones
};

// `schedule_of` gives a rank's schedule; the schedules must be right together. Ranks are simulated once where
// network and schedules repeat themselves, which is looked up for all ranks up to a world of 512 and for some
// beyond. Throws std::invalid_argument if the network does not connect two ranks that talk to each other.
Answer simulate(const Network& network, const std::function<Schedule(int)>& schedule_of,
                const Question& question);

}  // namespace ringreduce
