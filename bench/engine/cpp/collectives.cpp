// Times our collectives from C++ with the same protocol as the peers (bench/peers/protocol.h). Takes its
// options, and --memory ordinary|shared, --algorithm NAME|auto, --slice BYTES and --lanes N (0 means auto).
// With --in-turn N, it times calls of all the sizes in turn, and of one size at a time, N calls together: for
// bench/sizes_in_turn.py.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "engine/communicator/communicator.h"
#include "ranks.h"
#include "transport/memory/shared_heap.h"
#include "transport/memory/shm.h"

namespace {

using namespace ringreduce;

struct Context {
  Communicator* comm;
  Call call;
  const pr_world* world;
  const pr_case* asked;
  std::size_t bytes;  // that the extents are for
  Extents extents;
};

Collective collective_of(const pr_case& asked) {
  const auto same = [&](const CollectiveFacts& one) { return one.name == pr_facts(&asked)->name; };
  const auto* const found = std::find_if(collective_facts.begin(), collective_facts.end(), same);
  if (found == collective_facts.end()) std::exit(2);
  return static_cast<Collective>(found - collective_facts.begin());
}

// Blocks of the size that is called next.
void divide(Context& context, std::size_t bytes) {
  auto& [comm, call, world, asked, of_bytes, extents] = context;
  pr_case c = *asked;
  c.bytes = of_bytes = bytes;
  const bool exchanged = call.collective == Collective::all_to_all;
  extents = {};
  for (int rank = 0; rank < comm->size(); ++rank) {
    extents.offset.push_back(exchanged ? pr_exchange_offset(world, &c, comm->rank(), rank)
                                       : pr_offset(world, &c, rank));
    extents.count.push_back(exchanged ? pr_exchanged(world, &c, comm->rank(), rank)
                                      : pr_length(world, &c, rank));
  }
  call.count = has_blocks(call.collective) ? extents.count[0] : bytes / sizeof(float);
  call.input_extents = call.output_extents = c.uneven ? &extents : nullptr;
}

// In place: a rank's own block lies in the buffer of all blocks.
void run(void* given, float* buffer, float* result, std::size_t count) {
  auto& context = *static_cast<Context*>(given);
  auto& call = context.call;
  if (context.bytes != count * sizeof(float)) divide(context, count * sizeof(float));
  const auto own = context.extents.offset[static_cast<std::size_t>(context.comm->rank())];
  call.input = buffer + (contents(call.collective, true) == Holds::own_block ? own : 0);
  call.output = result + (contents(call.collective, false) == Holds::own_block ? own : 0);
  context.comm->run(call);
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

// The mean over kinds of calls of the medians of their times.
double typical(std::vector<std::vector<double>>& times) {
  double sum = 0;
  for (auto& some : times) {
    std::sort(some.begin(), some.end());
    sum += pr_quantile(some.data(), static_cast<int>(some.size()), 0.5);
  }
  return sum / static_cast<double>(times.size());
}

// Times the same calls in two orders, by turns. Each takes the next place in memory that has room for a
// round. Blocks are divided up beforehand, because callers know theirs.
void measure_in_turn(const pr_world& world, const Context& context, const std::vector<std::size_t>& sizes,
                     std::size_t together) {
  constexpr std::size_t parts = 3, repetitions = 3, line = 64;
  std::size_t bytes = 0, at = 0;
  std::vector<Context> calls(sizes.size(), context);
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    bytes += (sizes[s] + line - 1) / line * line;
    divide(calls[s], sizes[s]);
  }
  std::vector<float> memory(bytes / sizeof(float));
  const auto timed = [&](const auto& number_of) {
    const double start = pr_now();
    for (std::size_t i = 0; i < together; ++i) {
      const std::size_t number = number_of(i), size = sizes[number];
      if (at + size > bytes) at = 0;
      float* const buffer = memory.data() + at / sizeof(float);
      run(&calls[number], buffer, buffer, size / sizeof(float));
      at += (size + line - 1) / line * line;
    }
    return (pr_now() - start) / static_cast<double>(together);
  };
  std::vector<std::vector<double>> in_turn(sizes.size() / together), alone(sizes.size());
  for (std::size_t part = 0; part < parts; ++part) {
    pr_barrier(&world);
    for (std::size_t i = 0; i < repetitions * together * sizes.size(); i += together) {
      const std::size_t first = i % sizes.size();
      in_turn[first / together].push_back(timed([&](std::size_t k) { return first + k; }));
    }
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      const auto same = [&](std::size_t) { return s; };
      timed(same);  // which is the first of its size
      for (std::size_t i = 0; i < repetitions; ++i) alone[s].push_back(timed(same));
    }
  }
  if (world.rank > 0) return;
  std::printf("{\"alone_us\": %.4f, \"in_turn_us\": %.4f}\n", 1e6 * typical(alone), 1e6 * typical(in_turn));
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
    pr_parse_collective(&c, pr_option(argc, argv, "--collective", "all_reduce"));
    Context context{&comm, {}, &world, &c, std::string::npos, {}};
    context.call.collective = collective_of(c);
    context.call.algorithm =
        algorithm_of(context.call.collective, pr_option(argc, argv, "--algorithm", "auto"));
    context.call.slice_bytes = std::strtoull(pr_option(argc, argv, "--slice", "0"), nullptr, 10);
    context.call.lanes = std::atoi(pr_option(argc, argv, "--lanes", "0"));
    c.call = run;
    c.context = &context;
    if (std::strcmp(pr_option(argc, argv, "--memory", "ordinary"), "shared") == 0) {
      c.allocate = [](void*, std::size_t bytes) { return static_cast<float*>(shared_heap::allocate(bytes)); };
      c.release = [](void*, float* arena) { shared_heap::free(arena); };
    }
    const char* const together = pr_option(argc, argv, "--in-turn", nullptr);
    if (together) {
      std::vector<std::size_t> sizes;
      std::stringstream words(pr_option(argc, argv, "--sizes", "4"));
      for (std::string word; std::getline(words, word, ',');) sizes.push_back(std::stoull(word));
      measure_in_turn(world, context, sizes, std::stoull(together));
    } else {
      pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", "ringreduce"));
    }
    comm.close();
  }
  return bench::join_ranks(rank, ranks);
}
