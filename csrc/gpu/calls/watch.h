// A thread that watches launched work. The GPU waits for other ranks, and the host cannot intervene there.
// The thread ends work that would wait forever, and ends the group if it finds an error.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/calls/calls.h"
#include "gpu/runner/repeating.h"
#include "gpu/runner/runner.h"

namespace ringreduce {

class Watch {
 public:
  using Runners = std::function<std::vector<std::shared_ptr<Runner>>()>;

  // `last_launched`: the number of the last launched call.
  Watch(Calls& calls, Runners runners, const std::atomic<std::uint64_t>& last_launched);
  // The child of a fork does not have the thread.
  void disown() { thread_.disown(); }

 private:
  // A runner's progress when last seen.
  struct Progress {
    Backoff backoff;
    Clock::time_point since;
    std::uint64_t ended = 0;
    std::optional<std::uint64_t> disagreement;  // the number of the call, if seen once
  };

  void look(Runner& runner);
  void look_for_what_is_stuck(Runner& runner, Progress& progress);
  [[noreturn]] void disagree() const;
  void check_closed() const;
  void check_closed(const Transfer& message) const;

  Calls& calls_;
  const Runners runners_;
  const std::atomic<std::uint64_t>& last_launched_;
  std::map<const Runner*, Progress> progress_;
  Repeating thread_;
};

}  // namespace ringreduce
