#include "fronts/python/bindings.h"

NB_MODULE(_engine, m) {
  // Hooks that torch keeps until the very end keep communicators alive, so correct programs would end with
  // warnings. Tests look for leaks by other means.
  nanobind::set_leak_warnings(false);
  m.doc() = "The C++ engine of ringreduce.";
  ringreduce::bind_schedule(m);
  ringreduce::bind_simulate(m);
  ringreduce::bind_synthesis(m);
  ringreduce::bind_reduce(m);
  ringreduce::bind_user_op(m);
  ringreduce::bind_memory(m);
  ringreduce::bind_mpi_job(m);
  ringreduce::bind_links(m);
  ringreduce::bind_work(m);
  ringreduce::bind_account(m);
  ringreduce::bind_communicator(m);
  ringreduce::bind_fast_methods(m);
  ringreduce::bind_connect(m);
  ringreduce::bind_meeting(m);
  ringreduce::bind_measuring(m);
  ringreduce::bind_log(m);
  ringreduce::bind_signals(m);
  ringreduce::bind_values(m);
}
