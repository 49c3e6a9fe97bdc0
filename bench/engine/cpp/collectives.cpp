// Times our collectives from C++ with the same protocol as the peers (bench/peers/protocol.h). Takes its
// options, and --memory ordinary|shared, --algorithm NAME|auto, --slice BYTES and --lanes N (0 means auto).
#include <cstdio>

#include "engine/communicator/communicator.h"
#include "ranks.h"
#include "transport/memory/shared_heap.h"
#include "transport/memory/shm.h"

namespace {

using namespace ringreduce;

struct Context {
  Communicator* comm;
  Call call;
};

Collective collective_of(pr_collective collective) {
  if (collective == PR_REDUCE_SCATTER) return Collective::reduce_scatter;
  return collective == PR_ALL_GATHER ? Collective::all_gather : Collective::all_reduce;
}

// In place: a rank's own block lies in the buffer of all blocks.
void run(void* context, float* buffer, std::size_t count) {
  auto& [comm, call] = *static_cast<Context*>(context);
  const bool whole = call.collective == Collective::all_reduce;
  call.count = whole ? count : count / static_cast<std::size_t>(comm->size());
  float* own = buffer + (whole ? 0 : call.count * static_cast<std::size_t>(comm->rank()));
  call.input = call.collective == Collective::all_gather ? own : buffer;
  call.output = call.collective == Collective::reduce_scatter ? own : buffer;
  comm->run(call);
}

int algorithm_of(Collective collective, const char* name) {
  if (std::strcmp(name, "auto") == 0) return automatic;
  const Entry* entry = find_algorithm(collective, name);
  if (!entry) {
    std::fprintf(stderr, "no %s algorithm is called %s\n", name_of(collective), name);
    std::exit(2);
  }
  return static_cast<int>(entry - catalogue().data());
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = std::atoi(pr_option(argc, argv, "--ranks", "2"));
  if (ranks < 1 || ranks > PR_MAX_RANKS) return 2;
  const int cores = pr_cores();
  bench::Meeting* meeting = bench::make_meeting();
  const int rank = bench::fork_ranks(ranks);
  pr_world world = pr_make_world(rank, ranks, cores, &meeting->shared);
  {
    Communicator comm(ShmTransport::create(rank, ranks, bench::exchange_of(meeting, world)), Options());
    pr_pin(rank);
    pr_case c{};
    c.collective = pr_parse_collective(pr_option(argc, argv, "--collective", "all_reduce"));
    Context context{&comm, {}};
    context.call.collective = collective_of(c.collective);
    context.call.algorithm =
        algorithm_of(context.call.collective, pr_option(argc, argv, "--algorithm", "auto"));
    context.call.slice_bytes = std::strtoull(pr_option(argc, argv, "--slice", "0"), nullptr, 10);
    context.call.lanes = std::atoi(pr_option(argc, argv, "--lanes", "0"));
    c.call = run;
    c.context = &context;
    c.result_block = rank;
    if (std::strcmp(pr_option(argc, argv, "--memory", "ordinary"), "shared") == 0) {
      c.allocate = [](void*, std::size_t bytes) { return static_cast<float*>(shared_heap::allocate(bytes)); };
      c.release = [](void*, float* arena) { shared_heap::free(arena); };
    }
    pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", "ringreduce"));
    comm.close();
  }
  return bench::join_ranks(rank, ranks);
}
