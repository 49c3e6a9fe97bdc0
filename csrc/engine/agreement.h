// Agreement among the ranks that are left: who they are, and an exchange among them without a working
// collective. Each rank writes on a board of its own that all others read (in shared memory, or as messages).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

class Agreement {
 public:
  // `tick` is called now and then, and may throw.
  Agreement(Transport& transport, Clock::time_point deadline, std::function<void()> tick);

  // Every rank that is left calls it, and all get the same ranks. Throws Failure with the cause `timeout`,
  // and the rank that did not come; with `peer_lost`, and this rank, where the others go on without it.
  std::vector<int> survivors();
  // Every member's blob, of at most longest_blob bytes, in the members' order. Throws Failure with the cause
  // `peer_lost` if one of them dies: they agree again then.
  std::vector<std::string> exchange(const std::vector<int>& members, const std::string& blob);

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
  Board own_;
  std::vector<Clock::time_point> gone_since_;  // by rank; no time: it is there
};

}  // namespace ringreduce
