// Drives the engine over real transports, for the sanitizers: every algorithm of the catalogue in worlds of 1
// to 8 ranks, in one slice and in many, blocking and submitted, with messages, groups and losses beside them.
// Ranks are threads of this process, and then processes over shared memory unless --threads-only is given.
// With --fabric, they are threads over libfabric, and nothing else runs.
#include "stress.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "schedule/catalogue.h"
#include "transport/memory/local.h"
#include "transport/memory/shm.h"
#include "transport/ofi/ofi.h"
#include "transport/tcp/tcp.h"

namespace {

using namespace stress;

constexpr int max_world = 8;
constexpr int most_over_sockets = 4;

// What a rank brings to a collective, and what it must have afterwards. `block` is one rank's share.
struct Case {
  Floats input, output, expected;
  bool in_place = false;
};

Case make_case(Collective collective, int rank, int world, int root, std::size_t block) {
  const std::size_t all = block * static_cast<std::size_t>(world),
                    own = block * static_cast<std::size_t>(rank);
  Case c;
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      c.input = filled(rank, 0, all);
      if (collective == Collective::reduce && rank != root) return c;
      for (std::size_t i = 0; i < all; ++i) c.expected.push_back(sum_of(world, i));
      break;
    case Collective::reduce_scatter:
      c.input = filled(rank, 0, all);
      for (std::size_t i = 0; i < block; ++i) c.expected.push_back(sum_of(world, own + i));
      break;
    case Collective::broadcast:
      c.input = filled(rank, 0, all);
      c.expected = filled(root, 0, all);
      c.in_place = true;
      break;
    case Collective::all_gather:
    case Collective::gather:
      c.input = filled(rank, own, block);
      if (collective == Collective::gather && rank != root) return c;
      for (std::size_t i = 0; i < all; ++i) c.expected.push_back(value(static_cast<int>(i / block), i));
      break;
    case Collective::scatter:
      if (rank == root) c.input = filled(root, 0, all);
      c.expected = filled(root, own, block);
      break;
    case Collective::all_to_all:
      c.input = filled(rank, 0, all);
      for (std::size_t i = 0; i < all; ++i)
        c.expected.push_back(value(static_cast<int>(i / block), own + i % block));
      break;
    case Collective::scan:
    case Collective::exscan:
      c.input = filled(rank, 0, all);
      for (std::size_t i = 0; i < all; ++i) {
        c.expected.push_back(sum_of(collective == Collective::scan ? rank + 1 : rank, i));
      }
      break;
    case Collective::barrier:
      break;
  }
  c.output.resize(c.expected.size());
  return c;
}

bool whole(Collective collective) {
  return !has_blocks(collective) && collective != Collective::barrier;
}

Call call_for(Collective collective, Case& c, int world, int root, std::size_t block) {
  Call call;
  call.collective = collective;
  call.input = c.input.empty() ? nullptr : c.input.data();
  call.output = c.in_place ? c.input.data() : c.output.empty() ? nullptr : c.output.data();
  call.count = collective == Collective::barrier ? 0
               : whole(collective)               ? block * static_cast<std::size_t>(world)
                                                 : block;
  call.root = root;
  return call;
}

void check(const Case& c, const std::string& what) {
  require((c.in_place ? c.input : c.output) == c.expected, what);
}

// Every algorithm, each time with another root: short (one slice), cut into many slices, long enough to be
// lent, and cut into slices of which the last is too short for that; each called and submitted.
void catalogue_on(Communicator& comm) {
  const int world = comm.size();
  int handle = 0;
  for (const Entry& entry : catalogue()) {
    const int root = handle % world;
    for (const std::size_t block :
         {std::size_t{1}, std::size_t{67}, std::size_t{3000}, std::size_t{5000}, std::size_t{8193}}) {
      const std::string what = std::string(name_of(entry.collective)) + " " + std::string(entry.name) +
                               " world " + std::to_string(world) + " block " + std::to_string(block);
      for (const bool background : {false, true}) {
        Case c = make_case(entry.collective, comm.rank(), world, root, block);
        Call call = call_for(entry.collective, c, world, root, block);
        call.algorithm = handle;
        call.slice_bytes = block == 3000 ? 2048 : block == 8193 ? 2 * Executor::lend_from : 0;
        call.lanes = block == 8193 ? 1 : 0;
        if (background) {
          require(comm.submit(call)->wait(std::nullopt, [] {}), what);
        } else {
          comm.run(call);
        }
        check(c, what);
      }
    }
    ++handle;
  }
}

struct Quantised {
  Encoding wire;
  DType dtype;
};

// How far a quantised result may be off, of up to nine roundings, and one to float16.
float allowed_of(const Quantised& kind, float expected) {
  if (kind.wire == Encoding::fp16) return 16;
  const float once = kind.dtype == DType::float16 ? 2 : 0;
  return once + (kind.wire == Encoding::int8 ? 160 : 0.8F * expected + 1);
}

// Runs a call of float32 arrays with float16 ones.
void run_as_float16(Communicator& comm, Call call, Case& c) {
  const Codec cast = codec_for(Encoding::fp16);
  std::vector<std::uint16_t> input(c.input.size()), output(c.output.size());
  cast.encode(input.data(), c.input.data(), input.size());
  auto& result = c.in_place ? input : output;
  call.dtype = DType::float16;
  call.input = call.input ? input.data() : nullptr;
  call.output = call.output ? result.data() : nullptr;
  comm.run(call);
  cast.decode(c.in_place ? c.input.data() : c.output.data(), result.data(), result.size());
}

// Every algorithm with quantised messages.
void quantised_on(Communicator& comm) {
  const int world = comm.size();
  int handle = -1;
  for (const Entry& entry : catalogue()) {
    ++handle;
    if (entry.collective == Collective::barrier) continue;
    for (const Quantised& kind :
         {Quantised{Encoding::fp16, DType::float32}, Quantised{Encoding::int8, DType::float32},
          Quantised{Encoding::fp8, DType::float32}, Quantised{Encoding::int8, DType::float16},
          Quantised{Encoding::fp8, DType::float16}}) {
      const std::string what = std::string(name_of(entry.collective)) + " " + std::string(entry.name) +
                               " world " + std::to_string(world) + " wire " + name_of(kind.wire) + " of " +
                               name_of(kind.dtype);
      Case c = make_case(entry.collective, comm.rank(), world, handle % world, 1500);
      Call call = call_for(entry.collective, c, world, handle % world, 1500);
      call.algorithm = handle;
      call.slice_bytes = 4096;
      call.wire = kind.wire;
      if (kind.dtype == DType::float32) {
        comm.run(call);
      } else {
        run_as_float16(comm, call, c);
      }
      const Floats& result = c.in_place ? c.input : c.output;
      for (std::size_t i = 0; i < c.expected.size(); ++i) {
        if (std::abs(result[i] - c.expected[i]) <= allowed_of(kind, c.expected[i])) continue;
        require(false, what);
      }
    }
  }
}

// Sizes from one slice to many, in place, as "auto" would do it; the largest is lent rather than copied.
void sizes_on(Communicator& comm) {
  for (const std::size_t count : {0, 1, 1000, 20000, 300000}) {
    Floats x = filled(comm.rank(), 0, count);
    Call call;
    call.input = call.output = x.data();
    call.count = count;
    call.op = Op::avg;
    comm.run(call);
    for (std::size_t i = 0; i < count; ++i) {
      const float average = sum_of(comm.size(), i) / static_cast<float>(comm.size());
      if (std::abs(x[i] - average) <= 1e-6F * average) continue;  // the engine multiplies by the reciprocal
      require(false, "average of " + std::to_string(count));
    }
  }
}

// Several under way at once, and a blocking call behind them.
void submitted_on(Communicator& comm) {
  std::vector<Case> cases;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 12; ++i)
    cases.push_back(make_case(Collective::all_reduce, comm.rank(), comm.size(), 0,
                              10 + 400 * static_cast<std::size_t>(i)));
  for (Case& c : cases) {
    const std::size_t block = c.input.size() / static_cast<std::size_t>(comm.size());
    works.push_back(comm.submit(call_for(Collective::all_reduce, c, comm.size(), 0, block)));
  }
  Case last = make_case(Collective::all_gather, comm.rank(), comm.size(), 0, 100);
  comm.run(call_for(Collective::all_gather, last, comm.size(), 0, 100));
  check(last, "the call behind those submitted");
  for (const auto& work : works) require(work->done() && !work->exception(), "works are over in order");
  for (const Case& c : cases) check(c, "submitted");
}

void groups_on(Communicator& comm) {
  const auto group = comm.split(comm.rank() == 2 ? -1 : comm.rank() % 2, -comm.rank());
  require((group == nullptr) == (comm.rank() == 2), "who is in a group");
  if (group) {
    sizes_on(*group);
    group->close();
  }
}

// The last rank leaves; the others learn of it, and go on without it.
void loss_on(Communicator& comm) {
  if (comm.size() < 3) return;
  const int leaver = comm.size() - 1;
  if (comm.rank() == leaver) {
    comm.close();
    comm.close();
    return;
  }
  bool lost = false;
  try {
    sizes_on(comm);
  } catch (const Failure& failure) {
    lost = failure.cause == Cause::peer_lost && failure.culprit == leaver;
  }
  require(lost, "the loss of a rank is told");
  const auto rest = comm.shrink();
  require(rest->size() == comm.size() - 1, "the survivors");
  sizes_on(*rest);
}

void everything_on(Communicator& comm) {
  catalogue_on(comm);
  quantised_on(comm);
  sizes_on(comm);
  submitted_on(comm);
  told_on(comm);
  messages_on(comm, sizes_on);
  tags_on(comm);
  fetched_on(comm);
  groups_on(comm);
  loss_on(comm);
  comm.close();
}

void with_threads(int world) {
  std::vector<std::thread> ranks;
  for (auto& transport : LocalTransport::group(world)) {
    ranks.emplace_back([transport = std::move(transport)]() mutable {
      Communicator comm(std::move(transport), {});
      everything_on(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Where forked ranks lay down their blobs.
struct Meeting {
  pthread_barrier_t barrier;
  std::size_t sizes[max_world];
  char blobs[max_world][1024];

  std::vector<std::string> exchange(int rank, int world, const std::string& blob) {
    require(blob.size() <= sizeof blobs[rank], "the blob fits");
    std::memcpy(blobs[rank], blob.data(), blob.size());
    sizes[rank] = blob.size();
    pthread_barrier_wait(&barrier);
    std::vector<std::string> all;
    for (int r = 0; r < world; ++r) all.emplace_back(blobs[r], sizes[r]);
    pthread_barrier_wait(&barrier);
    return all;
  }
};

// Threads all the same, so that every sanitizer sees all of them.
using Connect = std::unique_ptr<Transport>(int rank, int world, const Exchange& exchange);
void over_network(int world, Connect connect) {
  const auto meeting = std::make_unique<Meeting>();
  pthread_barrier_init(&meeting->barrier, nullptr, static_cast<unsigned>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const Exchange exchange = [&](const std::string& blob) { return meeting->exchange(rank, world, blob); };
      Communicator comm(connect(rank, world, exchange), {});
      everything_on(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

std::unique_ptr<Transport> by_sockets(int rank, int world, const Exchange& exchange) {
  return TcpTransport::create(rank, world, exchange);
}

std::unique_ptr<Transport> by_fabric(int rank, int world, const Exchange& exchange) {
  return OfiTransport::create(rank, world, exchange, OfiTransport::wish_by_environment());
}

void with_processes(int world) {
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "mmap");
  auto* meeting = static_cast<Meeting*>(memory);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting->barrier, &shared, static_cast<unsigned>(world));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      const Exchange exchange = [=](const std::string& blob) { return meeting->exchange(rank, world, blob); };
      {
        Communicator comm(ShmTransport::create(rank, world, exchange), {});
        everything_on(comm);
      }
      std::exit(0);  // not _exit: leaks are looked for at the end
    }
    ranks.push_back(child);
  }
  for (const pid_t rank : ranks) {
    int status = 0;
    require(waitpid(rank, &status, 0) == rank && status == 0, "a rank's end");
  }
  munmap(memory, sizeof(Meeting));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--fabric") {
    for (int world = 1; world <= most_over_sockets; ++world) over_network(world, by_fabric);
    return 0;
  }
  const bool processes = argc < 2 || std::string_view(argv[1]) != "--threads-only";
  for (int world = 1; world <= max_world; ++world) {
    if (processes) with_processes(world);  // first: a process with threads had better not fork
    with_threads(world);
    if (world <= most_over_sockets) over_network(world, by_sockets);
    std::printf("%d ranks: well\n", world);
    std::fflush(stdout);
  }
  closing();
  blocks();
  buffers();
}
