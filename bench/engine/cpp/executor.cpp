// Measures the cost of the executor itself, in CPU nanoseconds per step of the program: runs every all-reduce
// over a transport whose messages are always there. Usage: bench_executor [--world 8] [--calls 20000]
#include <cstdio>
#include <ctime>

#include "../../peers/protocol.h"
#include "engine/communicator/communicator.h"

namespace {

using namespace ringreduce;

// Accepts every message, and has every message that is asked for, without a channel or memory traffic.
class NullTransport : public Transport {
 public:
  NullTransport(int rank, int world, std::uint64_t& contract, std::size_t& bytes)
      : Transport(rank, world, {.name = "null", .capacity = 1 << 20}),
        contract_(contract),
        bytes_(bytes),
        memory_(facts().capacity) {}
  std::size_t footprint() const override { return memory_.size(); }
  bool send(int, Peers, const void*, std::size_t, std::uint64_t) override { return true; }
  std::byte* reserve(int, Peers, std::size_t) override { return memory_.data(); }
  void post(int, Peers, const std::byte*, std::size_t, std::uint64_t) override {}
  int in_the_way(int, Peers) override { return -1; }
  bool reachable(const void*, std::size_t) override { return false; }
  bool lend(int, Peers, const std::byte*, std::size_t, std::uint64_t, std::byte*) override { return false; }
  void begin_access() override {}
  void end_access() override {}
  std::uint32_t sent(int, int) const override { return 0; }
  bool consumed(int, int, std::uint32_t) override { return true; }
  bool poll(int, int, Message& message) override {
    message.data = memory_.data();
    message.bytes = bytes_;
    message.contract = contract_;
    message.delivered = false;
    message.grant = nullptr;
    return true;
  }
  void release(int, int) override {}
  bool pause(Backoff&, int) override { return false; }
  void wake() override {}
  bool closed(int) const override { return false; }
  void abort(const Failure&) override {}
  void record(const Record&) override {}
  std::vector<Record> records(int) override { return {}; }
  std::optional<int> waits_for(int, Clock::duration) const override { return std::nullopt; }
  void show(const Board&) override {}
  Board board(int) override { return {}; }
  bool is_gone(int) override { return false; }
  void await_boards(int) override {}
  std::unique_ptr<Transport> among(int, int, const Exchange&) override { return nullptr; }
  void close() override {}
  void disown() override {}

 private:
  std::uint64_t& contract_;
  std::size_t& bytes_;
  std::vector<std::byte> memory_;
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void nothing(void* const*, int, const void* const*, int, std::size_t, double) {}

// With empty messages and combinations that do nothing, only the executor's own work is measured.
void measure(const Entry& entry, int world, int calls) {
  Place place;
  place.world = world;
  std::uint64_t contract = 1;
  std::size_t bytes = 0;
  NullTransport transport(0, world, contract, bytes);
  const Program program = lower(entry.build(place), 1);
  bytes = 0;  // an empty buffer: every message is empty, and no step is left out
  std::vector<float> buffer(1);
  Plan plan;
  plan.program = &program;
  plan.geometry = make_geometry(program, sizeof(float), 0, 1 << 16, transport.facts().capacity);
  plan.last_slice.resolve(program, plan.geometry, 0);
  plan.combine = plan.last = nothing;
  Task task;
  task.plan = &plan;
  task.input = task.output = reinterpret_cast<std::byte*>(buffer.data());
  task.contract = contract;
  Executor executor(transport);
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = cpu_seconds();
    for (int i = 0; i < calls; ++i) {
      executor.start(task);
      executor.advance();
      if (!executor.done()) std::abort();
    }
    best = std::min(best, cpu_seconds() - start);
  }
  const double call = best / calls * 1e9;
  std::printf("%-20s %5zu steps %9.1f ns a call %6.2f ns a step\n", std::string(entry.name).c_str(),
              program.steps.size(), call, call / static_cast<double>(program.steps.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const int world = std::atoi(pr_option(argc, argv, "--world", "8"));
  const int calls = std::atoi(pr_option(argc, argv, "--calls", "20000"));
  for (const Entry& entry : catalogue()) {
    if (entry.collective == Collective::all_reduce) measure(entry, world, calls);
  }
}
