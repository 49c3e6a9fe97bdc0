#include "schedule/check.h"

#include "schedule/form.h"
#include "schedule/refuse.h"
#include "schedule/symbolic_run.h"

namespace ringreduce {

std::string check(const std::vector<Schedule>& all) {
  try {
    check_form(all);
    SymbolicRun(all).check_results();
  } catch (const Refused& refused) {
    return refused.what();
  }
  return "";
}

bool keeps_rank_order(const std::vector<Schedule>& all) {
  try {
    check_form(all);
    SymbolicRun run(all);
    run.check_results();
    return run.keeps_rank_order();
  } catch (const Refused&) {
    return false;
  }
}

PassedOn passed_on(const std::vector<Schedule>& all, int rank) {
  return SymbolicRun(all).passed_on(rank);
}

}  // namespace ringreduce
