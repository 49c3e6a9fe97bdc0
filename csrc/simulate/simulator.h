// Times a collective on a described network, by a discrete-event simulation of every rank's schedule.
//
// A rank's core does one thing at a time. Each message that it sends or takes in, and each round, costs a
// fixed time, and each byte a time that depends on whether it is copied or combined. If a node has more ranks
// than cores, they take turns. Messages take the shortest route, and flow over all of its links at once, as
// fast as the slowest allows. A link serves them in order of arrival. Slices of the buffer run side by side,
// as many as there are lanes. This is LogGP (Alexandrov et al., SPAA 1995) with shared links.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

// The time that messages up to a size take on the cores at their ends, in seconds.
struct MessageCost {
  double up_to = 0;              // bytes
  double send = 0, receive = 0;  // per message
  double send_byte = 0, receive_byte = 0,
         combine_byte = 0;  // per byte; what arrives is received or combined
  double latency = 0;       // in addition to that of the links
};

struct Question {
  double bytes = 0;        // of the whole buffer
  double slice_bytes = 0;  // of one round's messages in one slice; 0: a single slice
  int lanes = 1;
  double round = 0;      // seconds of a core per round
  double switching = 0;  // between ranks on one core
  // Of messages inside hosts and between them, by size; the last row covers all larger ones. No rows: no
  // cost.
  std::vector<MessageCost> inside, between;
  double jitter = 0;  // seconds: the mean of each message's exponential delay
  std::uint64_t seed = 0;
  std::vector<double> late;  // by rank: seconds after the first rank's start; empty: all start at once
  // If all slices together take more, only the first ones are simulated, and the others are taken to be like
  // them.
  std::size_t most_messages = 2'000'000;
  std::size_t intervals = 0;  // how many to record
};

enum class Activity : std::uint8_t { send, receive, local, transfer };
inline constexpr std::array<std::string_view, 4> activity_names = {"send", "receive", "local", "transfer"};

// What kept a rank's core busy, or, for a transfer, a link.
struct Interval {
  Activity activity = Activity::send;
  int where = 0;  // rank or link
  int peer = 0, round = 0, slice = 0;
  double begin = 0, end = 0;
};

struct Answer {
  Moment end;         // the last rank's end
  int simulated = 0;  // ranks; each of the others does the same as one of them
  int slices = 0, rounds = 0;
  int simulated_slices = 0;  // fewer if all took too many messages; the others take as long as the last ones
  std::uint64_t messages = 0;       // of the simulated ranks
  std::vector<double> ended;        // by simulated rank
  std::vector<double> busy_ranks;   // by simulated rank: busy seconds of its core
  std::vector<double> busy_links;   // by link; of links with the same traffic only the first
  std::vector<Interval> intervals;  // the first ones
};

// `schedule_of` returns a rank's schedule; the schedules must be correct together. Ranks are simulated once
// if network and schedules repeat, which is checked for all ranks of worlds up to 512, and for some ranks of
// larger ones. Throws std::invalid_argument if the network does not connect two ranks that communicate.
Answer simulate(const Network& network, const std::function<Schedule(int)>& schedule_of,
                const Question& question);

}  // namespace ringreduce
