// Agreement among the surviving ranks: who they are, and an exchange among them that needs no working
// collective. Each rank writes on its own board, which all others read (in shared memory, or as messages).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

// Some members are in shrink() while others vote in grow().
struct OtherCall : Failure {
  using Failure::Failure;
};

class Agreement {
 public:
  // `tick` is called now and then while waiting, and may throw. `call` is what this rank has called.
  Agreement(Transport& transport, Clock::time_point deadline, std::function<void()> tick, std::string call);

  // Every surviving rank calls this, and all get the same ranks. Throws Failure with the cause `timeout` and
  // the rank that did not come, or with `peer_lost` and this rank if the others continue without it.
  std::vector<int> survivors();
  // Returns every member's blob, of less than longest_blob bytes, in the members' order. Throws Failure with
  // the cause `peer_lost` if a member dies; the others then agree again. Throws OtherCall, with the same
  // cause, if not all members are in the same call. All members then get it, and may exchange again.
  std::vector<std::string> exchange(const std::vector<int>& members, const std::string& blob);
  // The other ranks that may live, because no member has seen their end. All members get the same ones, or
  // fail as in exchange().
  std::vector<int> unreachable(const std::vector<int>& members);

 private:
  struct View;

  void show() { transport_.show(own_); }
  void wait_for(int peer);
  void look_at(int peer, View& view);
  void await_step(int peer, std::uint32_t wanted, const std::vector<int>& members);
  bool has_come(int peer, std::uint32_t wanted, const std::vector<int>& members);

  Transport& transport_;
  const Clock::time_point began_ = Clock::now();
  const Clock::time_point deadline_;
  const std::function<void()> tick_;
  const std::string call_;
  Board own_;
  std::vector<Clock::time_point> gone_since_;  // by rank; no time: it is alive
};

}  // namespace ringreduce
