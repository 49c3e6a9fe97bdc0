#include "bindings/bindings.h"

NB_MODULE(_engine, m) {
  m.doc() = "The C++ engine of ringreduce.";
  ringreduce::bind_schedule(m);
  ringreduce::bind_reduce(m);
  ringreduce::bind_memory(m);
  ringreduce::bind_mpi_job(m);
  ringreduce::bind_links(m);
  ringreduce::bind_communicator(m);
  ringreduce::bind_measuring(m);
}
