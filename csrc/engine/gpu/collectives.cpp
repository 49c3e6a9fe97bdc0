#include "engine/gpu/collectives.h"

#include <algorithm>

#include "engine/gpu/choice.h"
#include "engine/gpu/events/runner.h"
#include "engine/gpu/kernels/runner.h"
#include "engine/gpu/nccl/runner.h"
#include "engine/gpu/watch.h"
#include "engine/gpu/work.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds worth_a_look{40};  // of a call that lasts: to look takes a core
constexpr milliseconds suspicious_after{100};

template <typename Step>
class Stepping : public Steps {
 public:
  explicit Stepping(Step& step) : step_(step) {}
  bool next(Call& call) override { return step_(call); }

 private:
  Step& step_;
};

class Counted {
 public:
  explicit Counted(std::atomic<int>& number) : number_(number) { ++number_; }
  ~Counted() { --number_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& number_;
};

}  // namespace

// What this rank has on its GPU.
struct Gpu {
  explicit Gpu(int number) : device(number), stream(new_stream(CudaLibrary::get(), number)) {}

  const int device;
  const CudaHandle stream;  // in no order with others
  std::array<std::unique_ptr<Runner>, 2> runners;
  // What was launched last, but for graphs.
  void* last_event = nullptr;
  void* last_stream = nullptr;
};

GpuCollectives::GpuCollectives(GpuGroup group) : group_(std::move(group)) {}

GpuCollectives::~GpuCollectives() = default;

// --- meeting -----------------------------------------------------------------------------------------------

// A collective, the first time. All ranks fail with it, or none.
GpuCollectives::Ready GpuCollectives::ready(int device, bool over_nccl_anyway) {
  const std::lock_guard one_at_a_time(meeting_);
  group_.check_usable();
  if (!over_nccl_anyway && !path_of_schedules_) {
    path_of_schedules_ = agree_on_nccl(group_.transport, group_.exchange) ? over_nccl : reaching_peers;
  }
  const Path path = over_nccl_anyway ? over_nccl : *path_of_schedules_;
  std::shared_ptr<Gpu> gpu = gpu_;
  if (!gpu || !gpu->runners[path]) {
    if (path == reaching_peers) check_that_kernels_serve(group_.transport);
    exchange_or_fail(group_.exchange, [&] {
      const OnDevice there(CudaLibrary::get(), device);
      if (!gpu) gpu = std::make_shared<Gpu>(device);
      return std::string();
    });
    auto runner = meet(*gpu, path);
    const std::lock_guard lock(mutex_);
    gpu->runners[path] = std::move(runner);
    gpu_ = gpu;
    if (!watch_) watch_ = std::make_unique<Watch>([this] { look(); });
  }
  if (gpu->device == device) return {gpu, *gpu->runners[path]};
  throw InvalidArgument("the array is in the memory of GPU " + std::to_string(device) +
                        ", and this rank's collectives run on GPU " + std::to_string(gpu->device));
}

std::unique_ptr<Runner> GpuCollectives::meet(const Gpu& gpu, Path path) {
  const int rank = group_.rank, world = group_.world;
  if (path == over_nccl) {
    return std::make_unique<NcclRunner>(rank, world, gpu.device, group_.reproducible,
                                        group_.transport.hosts(), group_.timeout, group_.exchange,
                                        [this] { tick(); });
  }
  auto boxes = std::make_unique<DeviceBoxes>(CudaLibrary::get(), gpu.device, rank, world, group_.exchange,
                                             gpu.stream.get());
  if (!boxes->have_room()) return std::make_unique<EventRunner>(rank, world, gpu.device);
  return std::make_unique<KernelRunner>(rank, world, gpu.device, std::move(boxes));
}

void GpuCollectives::prepare(int device) {
  ready(device, false);
}

// Those that there are; each keeps all of the GPU.
std::vector<std::shared_ptr<Runner>> GpuCollectives::runners() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Runner>> found;
  if (!gpu_) return found;
  for (const auto& runner : gpu_->runners) {
    if (runner) found.emplace_back(gpu_, runner.get());
  }
  return found;
}

void* GpuCollectives::own_stream() {
  const std::lock_guard lock(mutex_);
  return gpu_ ? gpu_->stream.get() : nullptr;
}

std::size_t GpuCollectives::footprint() {
  std::size_t bytes = 0;
  for (const auto& runner : runners()) bytes += runner->footprint();
  return bytes;
}

// --- what ranks call ---------------------------------------------------------------------------------------

// What a GPU or NCCL refuses half-way it has refused this rank only: the others are told.
template <typename Step>
void GpuCollectives::told(Step step) const {
  try {
    step();
  } catch (const Failure&) {
    throw;
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Closed&) {
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    group_.check_usable();  // aborted because of what has failed elsewhere
    throw Failure(Cause::peer_lost, group_.rank, "rank " + std::to_string(group_.rank) + ": " + error.what());
  }
}

// While it waits for other ranks on the host, in the thread of who has called it.
void GpuCollectives::tick() const {
  group_.check_usable();
  group_.transport.check();
  group_.poll();
}

// All ranks must begin their calls in the same order, so it waits for asynchronous ones that are under way.
template <typename Step>
void GpuCollectives::in_order(Step step) {
  const auto and_tell = [&](Call& meeting) {
    bool more = false;
    told([&] { more = step(meeting); });
    return more;
  };
  Stepping steps(and_tell);
  group_.run(steps);
}

void GpuCollectives::enqueue(const Call& call, std::optional<void*> stream) {
  const Ready on = ready(call.device, call.algorithm == by_nccl);
  Launch how{stream.value_or(on.gpu->stream.get())};
  bool launched = false;
  const Counted on_its_way(launching_);
  in_order([&](Call& meeting) {
    const OnDevice there(CudaLibrary::get(), call.device);
    if (!launched) launch(on, call, how);
    launched = true;
    if (on.runner.meets(call, how, meeting)) return true;
    if (how.captured) return false;
    on.gpu->last_event = on.runner.last();
    on.gpu->last_stream = how.stream;
    return false;
  });
}

void GpuCollectives::launch(const Ready& on, const Call& call, Launch& how) {
  group_.check_usable();  // others may have left while this waited for its turn
  group_.transport.check();
  const CudaLibrary& cuda = CudaLibrary::get();
  int captured = 0;
  CudaLibrary::check(cuda.is_captured(&captured, how.stream));
  how.captured = captured != 0;
  const Plan& plan = on.runner.plan(group_.planner, call, how);
  const Record& record = group_.note(plan);
  how.contract = record.history;
  last_launched_ = record.sequence;
  if (!captured && on.gpu->last_event && on.gpu->last_stream != how.stream) {
    CudaLibrary::check(cuda.wait(on.gpu->last_event, how.stream));
  }
  on.runner.launch(call, plan, how);
}

std::shared_ptr<GpuWork> GpuCollectives::enqueue_beside(const Call& call, std::optional<void*> stream) {
  void* const own = ready(call.device, call.algorithm == by_nccl).gpu->stream.get();
  auto work = std::make_shared<GpuWork>(call.device);
  if (stream) work->come_behind(*stream, own);
  enqueue(call, own);
  work->launched(own);
  return work;
}

void GpuCollectives::enroll(int device, void* memory, std::size_t bytes) {
  const Ready on = ready(device, true);
  in_order([&](Call&) { return on.runner.enroll(memory, bytes), false; });
}

void GpuCollectives::withdraw(int device, void* memory) {
  const Ready on = ready(device, true);
  in_order([&](Call&) { return on.runner.withdraw(memory), false; });
}

// --- who looks after it ------------------------------------------------------------------------------------

// What is found wrong ends the group, and the next call throws it.
void GpuCollectives::look() {
  for (const auto& runner : runners()) {
    try {
      if (group_.is_over()) {
        runner->give_up();
      } else {
        group_.guard([&] { told([&] { look_for_what_is_stuck(*runner, progress_[runner.get()]); }); });
      }
    } catch (const Error&) {
      runner->give_up();
    }
  }
}

// Throws what is wrong where calls have not moved on for long. That ranks call different things shows in what
// each has noted down, and is believed when it shows twice.
void GpuCollectives::look_for_what_is_stuck(Runner& runner, Progress& progress) {
  runner.check();
  group_.transport.check();
  const std::uint64_t ended = runner.ended();
  if (runner.begun() == ended || ended != progress.ended || progress.since == Clock::time_point()) {
    progress.ended = ended;
    progress.since = Clock::now();
    progress.disagreement.reset();
    progress.backoff.reset();
    return;
  }
  if (Clock::now() - progress.since < worth_a_look) return;
  // As a thread that waits for peers does, which finds out when one of them is dead.
  while (!group_.is_over() && runner.ended() == ended && !group_.transport.pause(progress.backoff, -1)) {
  }
  const auto lasted = Clock::now() - progress.since;
  if (lasted >= group_.timeout) {
    const int late = group_.diagnosis.late_rank(-1, last_launched_, group_.timeout);
    group_.diagnosis.time_out(group_.timeout, late, runner.what());
  }
  if (lasted < suspicious_after) return;
  check_closed();
  const auto found = group_.diagnosis.first_disagreement();
  if (found && found == progress.disagreement)
    throw Disagreement{group_.diagnosis.rank_that_called_otherwise(*found)};
  progress.disagreement = found;
}

// A rank that closed before it made a call that this one has made never will. What it had to say before is
// heard by now.
void GpuCollectives::check_closed() const {
  for (int peer = 0; peer < group_.world; ++peer) {
    if (peer == group_.rank || !group_.transport.closed(peer)) continue;
    const std::vector<Record> records = group_.transport.records(peer);
    const std::uint64_t last = records.empty() ? 0 : records.back().sequence;
    if (last >= last_launched_) continue;
    throw Failure(Cause::peer_lost, peer,
                  "rank " + std::to_string(peer) + " closed its communicator while rank " +
                      std::to_string(group_.rank) + " was waiting for it in a collective on its GPU");
  }
}

void GpuCollectives::finish() {
  const auto all = runners();
  while (!group_.is_over() && !is_idle()) {
    std::this_thread::sleep_for(milliseconds(1));
    group_.poll();
  }
  for (const auto& runner : all) {
    if (!group_.is_over()) runner->finish(group_.timeout, group_.poll);
  }
}

// Whether nothing is under way, nor will be when the group is over.
bool GpuCollectives::is_idle() {
  if (launching_ > 0) return false;
  const auto all = runners();
  return std::all_of(all.begin(), all.end(), [](const auto& runner) { return runner->is_idle(); });
}

// What one of them gives back waits for the GPU, and so for what the other has there.
void GpuCollectives::leave() {
  const std::lock_guard no_meeting(meeting_);
  bool idle = false;
  try {
    idle = is_idle();
  } catch (const Error&) {  // the GPU has failed
  }
  for (const auto& runner : runners()) runner->give_up();
  // Others may wait for what this rank has called, and now does not do.
  if (!idle) {
    group_.transport.abort(
        Failure(Cause::peer_lost, group_.rank,
                "rank " + std::to_string(group_.rank) + " left while a collective was under way on its GPU"));
  }
  watch_.reset();
  std::shared_ptr<Gpu> left;
  const std::lock_guard lock(mutex_);
  left.swap(gpu_);
}

void GpuCollectives::disown() {
  if (watch_) watch_->disown();
  static_cast<void>(new std::shared_ptr<Gpu>(std::move(gpu_)));
}

}  // namespace ringreduce
