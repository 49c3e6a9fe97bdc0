// What is known of a transport once the ranks are connected, and does not change.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ringreduce {

struct TransportFacts {
  std::string name;
  // The number of each rank's host, for algorithms of two levels. Empty: all ranks share a host, or none do.
  std::vector<int> hosts{};
  // Whether some ranks are on other hosts, so that measuring the links to them pays off.
  bool distant = false;
  // Whether there are more ranks than cores; the same on all ranks.
  bool oversubscribed = false;
  // The cores that more ranks of one host share; 0 if there are enough, or if that is unknown.
  int shared_cores = 0;
  // The bytes of staged messages that one lane of the collectives holds; a round's messages must fit. The
  // lane of point-to-point messages holds a quarter of this, and the lane of their bodies three quarters.
  std::size_t capacity = 0;
  // The bytes of the longest message that leaves before its receiver has answered, if the transport knows it
  // and longer ones take much longer; otherwise 0. The same on all ranks.
  std::size_t longest_eager = 0;
  // Whether what is sent by copy may wait in a queue; see MessagePlane::flushed().
  bool queues = false;
  // Whether there are broadcast slots; see MessagePlane::fill_broadcast_slot().
  bool broadcast_slots = false;
  // Whether arrays in a device's memory may take it, by way of the host's memory.
  bool for_devices = true;
  // How many times among() exchanges, for any members.
  int exchanges = 2;
};

}  // namespace ringreduce
