// Moves bytes to a peer, or lets the peer read them. No algorithm lives here: a transport knows messages,
// lanes and peers, but no schedules, chunks or reductions.
//
// It has three planes: messages by copy, memory that peers may read or write, and control. What is known of
// it from the start is data. A caller tries what cannot be done now again after pause(), the only place where
// time passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/interface/control.h"
#include "transport/interface/facts.h"
#include "transport/interface/memory.h"
#include "transport/interface/messages.h"

namespace ringreduce {

// Collects one blob from every rank of a group, in rank order, on every rank. Bootstrap consists of this
// alone.
using Exchange = std::function<std::vector<std::string>(const std::string&)>;

// The ranks' reports to each other when they met, by rank; empty if all are on one host, or in one process.
struct MeetingReports {
  std::uint64_t group = 0;               // a number that no other group has
  std::vector<int> machine;              // the number of each rank's host
  std::vector<std::uint64_t> agreement;  // what their engines must agree on

  MeetingReports among(const std::vector<int>& members) const {
    MeetingReports theirs;
    for (const int member : members) {
      if (!machine.empty()) theirs.machine.push_back(machine[member]);
      if (!agreement.empty()) theirs.agreement.push_back(agreement[member]);
    }
    return theirs;
  }
};

// Something that a transport counts.
struct TransportCount {
  const char* what = "";
  std::uint64_t number = 0;
};

class Transport : public MessagePlane, public MemoryPlane, public ControlPlane {
 public:
  Transport(int rank, int world, TransportFacts facts) : rank(rank), world(world), facts_(std::move(facts)) {}

  const int rank;
  const int world;
  MeetingReports reports;
  // The fabric that carries messages between hosts, or why none does; empty if nobody has looked for one.
  std::string fabric;

  const TransportFacts& facts() const { return facts_; }
  // For any thread.
  virtual std::vector<TransportCount> counts() const { return {}; }

  // Lets time pass when nothing can be done; `waiting_for` is the peer that holds us up. Returns true when
  // the wait is so long that the caller should check its own deadline. Throws Failure if a peer is dead, or
  // has closed although it is waited for, whatever check() throws, and Disagreement if a peer made another
  // call.
  virtual bool pause(Backoff& backoff, int waiting_for) = 0;
  // Ends the sleeps of this rank's other threads in pause(), because one of them may have got what it waits
  // for.
  virtual void wake() = 0;
  // Whether a peer seems to share this rank's core, so that it runs only when this rank yields the core.
  virtual bool shares_core(int) const { return false; }

  // A new transport of the same kind among some of the ranks, all of which call this with the same members.
  virtual std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) = 0;

 protected:
  TransportFacts facts_;
};

}  // namespace ringreduce
