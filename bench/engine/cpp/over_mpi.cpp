// Times our all-reduce over MPI's messages from C++ with the same protocol as the peers
// (bench/peers/protocol.h). An mpirun starts it. Takes the options of the protocol, and --plugin FILE (the
// file that ringreduce.mpi.transport.path() returns), --algorithm NAME|auto, --slice BYTES and --lanes N.
#include <fcntl.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "../../peers/protocol.h"
#include "engine/communicator/communicator.h"
#include "schedule/catalogue.h"
#include "transport/compose/mpi_job.h"

namespace {

using namespace ringreduce;

struct Context {
  Communicator* comm;
  Call call;
};

void run(void* context, float* buffer, float* /*result*/, std::size_t count) {
  auto& [comm, call] = *static_cast<Context*>(context);
  call.count = count;
  call.input = call.output = buffer;
  comm->run(call);
}

int algorithm_of(const char* name) {
  if (std::strcmp(name, "auto") == 0) return automatic;
  const Entry* entry = find_algorithm(Collective::all_reduce, name);
  if (!entry) std::exit(2);
  return static_cast<int>(entry - catalogue().data());
}

// mpirun starts the ranks, so they share memory through a file, which is unlinked before anything is timed.
void* map_shared(MpiJob& job) {
  char path[] = "/dev/shm/ringreduce-bench-XXXXXX";
  int fd = job.rank == 0 ? mkstemp(path) : -1;
  const std::string name = job.exchange(path)[0];
  if (job.rank != 0) fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = fd < 0 ? nullptr : pr_map(fd);
  if (!memory) std::exit(1);
  close(fd);
  job.exchange("");
  if (job.rank == 0) unlink(path);
  return memory;
}

}  // namespace

int main(int argc, char** argv) {
  const auto job = join_mpi(pr_option(argc, argv, "--plugin", ""), nullptr, "", std::chrono::seconds(30));
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  pr_world world = pr_make_world(job->rank, job->size, cores, map_shared(*job));
  const Exchange exchange = [&](const std::string& blob) { return job->exchange(blob); };
  Communicator comm(job->connect(job->rank, job->size, exchange), Options());
  const char* algorithm = pr_option(argc, argv, "--algorithm", "auto");
  pr_case c{};
  Context context{&comm, {}};
  context.call.collective = Collective::all_reduce;
  context.call.dtype = DType::float32;
  context.call.algorithm = algorithm_of(algorithm);
  context.call.slice_bytes = std::strtoull(pr_option(argc, argv, "--slice", "0"), nullptr, 10);
  context.call.lanes = std::atoi(pr_option(argc, argv, "--lanes", "0"));
  c.call = run;
  c.context = &context;
  const std::string name = std::string("ringreduce:") + algorithm;
  pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", name.c_str()));
  return 0;
}
