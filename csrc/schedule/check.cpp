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

Order order_of(const std::vector<Schedule>& all) {
  try {
    check_form(all);
    SymbolicRun(all).check_results();
    return SymbolicRun(all, false).order();
  } catch (const Refused&) {
    return Order::any;
  }
}

PassedOn passed_on(const std::vector<Schedule>& all, int rank) {
  return SymbolicRun(all).passed_on(rank);
}

}  // namespace ringreduce
