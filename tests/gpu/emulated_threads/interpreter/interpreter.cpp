// What tests/gpu/test_interpreter.py calls: all ranks' kernels side by side, each block a thread of the
// CPU's.
#include "gpu/kernels/cuda/interpreter.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "gpu/kernels/flatten.h"
#include "gpu/reduce/failures.h"
#include "passes.h"
#include "schedule/catalogue.h"

using namespace ringreduce;
using namespace ringreduce::device;

namespace {

struct Freed {
  void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{256}); }
};
using Memory256 = std::unique_ptr<char, Freed>;

Memory256 zeros(std::size_t bytes) {
  auto* memory = static_cast<char*>(::operator new(std::max<std::size_t>(bytes, 1), std::align_val_t{256}));
  std::memset(memory, 0, bytes);
  return Memory256(memory);
}

}  // namespace

// What Python fills in.
extern "C" struct Job {
  const char* algorithm;
  int collective, dtype, op, world, root;
  int blocks, threads;
  int calls;     // one after the other
  int missing;   // a rank that never comes, or -1
  int contrary;  // a rank whose call has nothing in common with the others', or -1
  std::size_t count, slice_bytes, arena_bytes;  // count: of the longest block, where they are uneven
  double factor;
  void* const* inputs;        // by rank
  void* const* outputs;       // by rank; may be the inputs
  const std::size_t* counts;  // of each rank's block, where they are uneven; else null
  std::uint64_t* differing;   // by rank: becomes Report::differs
};

namespace {

struct Rank {
  Extents extents;
  std::vector<std::byte> program;
  Memory256 boxes, temp;
  Errand errand = {};
  Report report = {};
};

Program lowered(const Job& job, int rank) {
  const auto collective = static_cast<Collective>(job.collective);
  Place place;
  place.world = job.world;
  place.root = job.root;
  int heaviest = 0;
  for (place.rank = 0; place.rank < job.world; ++place.rank) {
    heaviest = std::max(heaviest, heaviest_round(make_schedule(collective, job.algorithm, place)));
  }
  place.rank = rank;
  return lower(make_schedule(collective, job.algorithm, place), heaviest, true);
}

Extents extents_of(const Job& job) {
  Extents extents;
  std::size_t offset = 0;
  for (int rank = 0; rank < job.world; ++rank) {
    const std::size_t count = job.counts ? job.counts[rank] : job.count;
    extents.offset.push_back(offset);
    extents.count.push_back(count);
    offset += count;
  }
  return extents;
}

// Where a rank's block begins in what the user has of it alone: as Communicator::begin.
std::size_t before(const Job& job, const Extents& extents, int rank, bool of_input) {
  const auto collective = static_cast<Collective>(job.collective);
  const bool one = of_input ? collective == Collective::all_gather || collective == Collective::gather
                            : collective == Collective::reduce_scatter || collective == Collective::scatter;
  return one ? extents.offset[rank] * size_of(static_cast<DType>(job.dtype)) : 0;
}

Scale scale_of(double factor) {
  return {factor, static_cast<std::int64_t>(1 / factor + 0.5)};
}

void prepare(const Job& job, int rank, Rank& made) {
  const Program program = lowered(job, rank);
  made.extents = extents_of(job);
  Geometry geometry = make_geometry(program, size_of(static_cast<DType>(job.dtype)), job.count,
                                    job.slice_bytes, ~std::size_t{0} >> 1);
  geometry.count = job.count;
  if (job.counts) geometry.input = geometry.output = &made.extents;
  made.program = flatten(program, geometry, job.arena_bytes);
  Errand& errand = made.errand;
  errand.rank = rank;
  errand.dtype = job.dtype;
  errand.scales = job.factor != 1;
  errand.op = errand.scales ? static_cast<int>(ringreduce::scaling) : job.op;
  errand.contract = rank == job.contrary ? 2 : 1;
  errand.program = reinterpret_cast<const FlatProgram*>(made.program.data());
  errand.boxes = {job.blocks, job.world, job.arena_bytes};
  made.boxes = zeros(errand.boxes.bytes());
  made.temp = zeros(errand.program->temp_bytes * static_cast<std::size_t>(job.blocks));
  errand.input = static_cast<const char*>(job.inputs[rank]) - before(job, made.extents, rank, true);
  errand.output = static_cast<char*>(job.outputs[rank]) - before(job, made.extents, rank, false);
  errand.temp = made.temp.get();
  const auto op = static_cast<ringreduce::Op>(job.op);
  errand.last = scale_of(op == ringreduce::Op::avg ? 1.0 / job.world : 1);
  errand.own = scale_of(job.factor);
}

void run_block(const Job& job, int index, const Errand& errand, const Pass& pass) {
  const auto shared = std::make_unique<InterpreterShared>();
  Block block(index, job.blocks, static_cast<std::size_t>(job.threads));
  Interpreter(block, *shared, errand, pass).run();
}

// What the host does when it sees that a call hangs, or that calls differ.
void abort_all(std::vector<Rank>& ranks, bool is_contrary) {
  for (int milliseconds = 0; milliseconds < (is_contrary ? 10'000 : 50); ++milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    bool differ = false;
    for (const Rank& rank : ranks) differ = differ || load_relaxed(&rank.report.differs) != 0;
    if (differ) break;
  }
  for (Rank& rank : ranks) give_up(rank.report);
}

void run(const Job& job) {
  std::vector<Rank> ranks(static_cast<std::size_t>(job.world));
  for (int rank = 0; rank < job.world; ++rank) prepare(job, rank, ranks[rank]);
  std::vector<std::thread> blocks;
  const Pass pass =
      pass_for(static_cast<DType>(job.dtype), static_cast<ringreduce::Op>(ranks.front().errand.op));
  for (Rank& rank : ranks) {
    for (int other = 0; other < job.world; ++other) rank.errand.memories[other] = ranks[other].boxes.get();
    rank.errand.report = &rank.report;
    if (rank.errand.rank == job.missing) continue;
    for (int b = 0; b < job.blocks; ++b) {
      // A stream's kernels come one after the other, and no rank waits for others in between.
      blocks.emplace_back([&, b] {
        for (int call = 0; call < job.calls; ++call) run_block(job, b, rank.errand, pass);
      });
    }
  }
  if (job.missing >= 0 || job.contrary >= 0) abort_all(ranks, job.contrary >= 0);
  for (std::thread& block : blocks) block.join();
  for (const Rank& rank : ranks) job.differing[rank.errand.rank] = rank.report.differs;
}

}  // namespace

extern "C" const char* emulated_interpreter(const Job* job) {
  return failure_of([&] { run(*job); });
}

// Of a rank's first slice.
extern "C" const char* emulated_batches(const Job* job, int rank, int* batches) {
  return failure_of([&] {
    Rank made;
    prepare(*job, rank, made);
    *batches = reinterpret_cast<const FlatLayout*>(made.errand.program + 1)->batches;
  });
}
