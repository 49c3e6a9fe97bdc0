#include "schedule/passed_on.h"

#include "schedule/symbolic_run.h"

namespace ringreduce {

PassedOn passed_on(const std::vector<Schedule>& all, int rank) {
  SymbolicRun run(all);
  run.to_the_end();
  return run.passed_on(rank);
}

}  // namespace ringreduce
