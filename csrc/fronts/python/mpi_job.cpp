// Ranks that MPI started, and how they meet.
#include "transport/compose/mpi_job.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "fronts/python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

std::shared_ptr<MpiJob> join(const std::string& plugin, std::uintptr_t communicator,
                             const std::string& library, double timeout) {
  const std::chrono::duration<double> patience(std::min(timeout, 1e9));
  const WithoutGil unlocked;
  return join_mpi(plugin, reinterpret_cast<const void*>(communicator), library,
                  std::chrono::duration_cast<Clock::duration>(patience));
}

nb::list exchange(MpiJob& job, const nb::bytes& blob) {
  const std::string own(blob.c_str(), blob.size());
  std::vector<std::string> all;
  {
    const WithoutGil unlocked;
    all = job.exchange(own);
  }
  nb::list blobs;
  for (const std::string& one : all) blobs.append(nb::bytes(one.data(), one.size()));
  return blobs;
}

}  // namespace

void bind_mpi_job(nb::module_& m) {
  nb::class_<MpiJob>(m, "MpiJob", "The ranks of an MPI communicator.")
      .def_ro("rank", &MpiJob::rank)
      .def_ro("size", &MpiJob::size)
      .def("exchange", exchange, "blob"_a);
  m.def("join_mpi", join, "plugin"_a, "communicator"_a, "library"_a, "timeout"_a,
        "Joins the ranks of an MPI communicator, given the address of its handle; 0: MPI_COMM_WORLD.");
}

}  // namespace ringreduce
