#include "engine/gpu/collectives.h"

#include <algorithm>

#include "engine/gpu/events/runner.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/kernels/messenger.h"
#include "engine/gpu/kernels/runner.h"
#include "engine/gpu/nccl/runner.h"
#include "engine/gpu/watch.h"
#include "engine/gpu/work.h"
#include "transport/interface/environment.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr const char* variable = "RINGREDUCE_GPU_TRANSPORT";

std::string wanted_by_environment() {
  const std::string value = environment(variable, {"auto", "cuda", "nccl"});
  return value == "auto" ? "" : value;
}

bool has_several_hosts(const Transport& transport) {
  const std::vector<int> hosts = transport.hosts();
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
}

// Follows RINGREDUCE_GPU_TRANSPORT, the same on all ranks, or else picks what works where the ranks are. A
// collective.
bool agree_on_nccl(const Transport& transport, const Exchange& exchange) {
  const std::vector<std::string> wanted = exchange_or_fail(exchange, wanted_by_environment);
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (wanted[rank] == wanted[0]) continue;
    const auto named = [](const std::string& value) { return value.empty() ? "unset" : value; };
    throw Error(std::string(variable) + " is " + named(wanted[0]) + " on rank 0 and " + named(wanted[rank]) +
                " on rank " + std::to_string(rank));
  }
  if (!wanted[0].empty()) return wanted[0] == "nccl";
  return has_several_hosts(transport) || transport.distant() || transport.world > device::most_ranks;
}

// Its result is the same on all ranks.
void check_that_kernels_serve(const Transport& transport) {
  if (transport.world > device::most_ranks) {
    throw InvalidArgument("a group of " + std::to_string(transport.world) +
                          " ranks is too large for GPU kernels, which serve at most " +
                          std::to_string(device::most_ranks));
  }
  if (has_several_hosts(transport)) {
    throw InvalidArgument(
        "GPU kernels need all ranks on one host, but these are on several; set "
        "RINGREDUCE_GPU_TRANSPORT=nccl");
  }
}

InvalidArgument wrong_device(int device, int expected) {
  return InvalidArgument("the array is on GPU " + std::to_string(device) +
                         ", but this rank's calls run on GPU " + std::to_string(expected));
}

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

GpuCollectives::GpuCollectives(Calls& calls, Progress& progress, Exchange exchange)
    : calls_(calls), progress_(progress), exchange_(std::move(exchange)) {}

GpuCollectives::~GpuCollectives() = default;

// --- meeting -----------------------------------------------------------------------------------------------

auto GpuCollectives::means_of(const Call& call) -> For {
  return call.algorithm == by_nccl ? For::calls_over_nccl : For::calls;
}

// A collective, the first time. Either all ranks fail, or none.
GpuCollectives::Ready GpuCollectives::ready(int device, For what) {
  const bool over_nccl_anyway = what == For::calls_over_nccl;
  const std::lock_guard one_at_a_time(meeting_);
  calls_.check_usable();
  if (!over_nccl_anyway && !path_of_schedules_) {
    path_of_schedules_ = agree_on_nccl(*calls_.transport, exchange_) ? over_nccl : reaching_peers;
  }
  const Path path = over_nccl_anyway ? over_nccl : *path_of_schedules_;
  std::shared_ptr<Gpu> gpu = gpu_;
  if (!gpu || !gpu->runners[path]) {
    if (path == reaching_peers) check_that_kernels_serve(*calls_.transport);
    exchange_or_fail(exchange_, [&] {
      const OnDevice there(CudaLibrary::get(), device);
      Gpu::give_back(nullptr);
      if (!gpu) gpu = std::make_shared<Gpu>(device);
      return std::string();
    });
    auto runner = meet(*gpu, path, what == For::calls_and_messages);
    calls_.say(log::Level::info,
               "arrays of GPU " + std::to_string(device) + " are combined " +
                   (path == over_nccl ? "over NCCL" : "by kernels that access their peers' memory"));
    const std::lock_guard lock(mutex_);
    gpu->runners[path] = std::move(runner);
    gpu_ = gpu;
    if (!watch_) watch_ = std::make_unique<Watch>(calls_, [this] { return this->runners(); }, last_launched_);
  }
  if (gpu->device == device) return {gpu, *gpu->runners[path]};
  throw wrong_device(device, gpu->device);
}

std::unique_ptr<Runner> GpuCollectives::meet(const Gpu& gpu, Path path, bool messages) {
  const int rank = calls_.rank, world = calls_.world;
  if (path == over_nccl) {
    return std::make_unique<NcclRunner>(rank, world, gpu.device, calls_.options.reproducible,
                                        calls_.transport->hosts(), calls_.options.timeout, exchange_,
                                        [this] { tick(); });
  }
  auto boxes = std::make_unique<DeviceBoxes>(CudaLibrary::get(), gpu.device, rank, world, exchange_,
                                             gpu.stream.get(), messages);
  auto buffers = reaching_arrays(*boxes, gpu.device);
  std::unique_ptr<Runner> runner;
  // Allocations may wait for everything that runs on the GPU, so no rank launches before all have what they
  // need.
  exchange_or_fail(exchange_, [&] {
    const OnDevice there(CudaLibrary::get(), gpu.device);
    if (boxes->have_room()) {
      runner = std::make_unique<KernelRunner>(rank, world, gpu.device, std::move(boxes), std::move(buffers));
    } else {
      runner = std::make_unique<EventRunner>(rank, world, gpu.device, boxes->devices_of_peers());
    }
    return std::string();
  });
  return runner;
}

// For ranks that are processes, unless one of them cannot; then null on all ranks. Not for processes with
// several ranks: CUDA may map memory only when everything that runs has finished, and one rank would wait to
// launch what others wait for.
std::unique_ptr<Buffers> GpuCollectives::reaching_arrays(const DeviceBoxes& boxes, int device) {
  if (!boxes.have_room() || boxes.one_process() || !boxes.own_processes()) return nullptr;
  std::unique_ptr<Buffers> buffers;
  std::string address;
  try {
    buffers = std::make_unique<Buffers>(CudaLibrary::get(), device, calls_.rank, calls_.world);
    address = buffers->address();
  } catch (const std::exception&) {  // there is no shared memory
  }
  const auto addresses = exchange_(address);
  const auto opened = exchange_(buffers && buffers->open(addresses) ? "all" : "");
  if (std::find(opened.begin(), opened.end(), "") != opened.end()) buffers.reset();
  return buffers;
}

void GpuCollectives::prepare(int device) {
  ready(device, For::calls_and_messages);
}

// The existing runners; each keeps its whole GPU alive.
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

// --- messages ----------------------------------------------------------------------------------------------

bool GpuCollectives::carries_messages() {
  const std::lock_guard lock(mutex_);
  return gpu_ && gpu_->runners[reaching_peers] && gpu_->runners[reaching_peers]->messenger();
}

// The ranks cannot meet for a message, because only two of them know of it.
std::shared_ptr<Gpu> GpuCollectives::for_messages(int device) {
  calls_.check_usable();
  if (!carries_messages()) {
    throw InvalidArgument(
        "messages between GPUs need kernels that all ranks have prepared: call comm.prepare(device) before "
        "the "
        "first collective of arrays in GPU memory. It helps only if all ranks are on one host, their kernels "
        "run at the same time, and each has four times as many thread blocks as there are ranks");
  }
  const std::lock_guard lock(mutex_);
  if (gpu_->device == device) return gpu_;
  throw wrong_device(device, gpu_->device);
}

void GpuCollectives::launch(const Gpu& gpu, std::span<const Transfer> transfers, void* stream) {
  const OnDevice there(CudaLibrary::get(), gpu.device);
  calls_.guarded([&] {
    calls_.telling_others([&] {
      calls_.transport->check();
      Launch how{stream};
      int captured = 0;
      CudaLibrary::check(CudaLibrary::get().is_captured(&captured, stream));
      how.captured = captured != 0;
      if (how.captured) gpu.hold_in_graph(stream);
      gpu.runners[reaching_peers]->messenger()->launch(transfers, how);
      for (const Transfer& one : transfers) calls_.messages.count(one);
    });
  });
}

void GpuCollectives::exchange(int device, std::span<const Transfer> transfers, std::optional<void*> stream) {
  if (transfers.empty()) return;
  if (stream && is_per_thread(*stream)) {
    return exchange_beside(device, transfers, stream)->let_wait(*stream);
  }
  const Counted on_its_way(launching_);
  const std::shared_ptr<Gpu> gpu = for_messages(device);
  launch(*gpu, transfers, stream ? without_alias(*stream) : gpu->stream.get());
}

// On a stream of the first message's pair.
std::shared_ptr<GpuWork> GpuCollectives::exchange_beside(int device, std::span<const Transfer> transfers,
                                                         std::optional<void*> stream) {
  const Counted on_its_way(launching_);
  const std::shared_ptr<Gpu> gpu = for_messages(device);
  void* const own = gpu->runners[reaching_peers]->messenger()->stream_for(transfers.front());
  auto work = std::make_shared<GpuWork>(device);
  if (stream) {
    work->record(*stream);
    work->let_wait(own);
  }
  launch(*gpu, transfers, own);
  work->record(own);
  return work;
}

// --- what ranks call ---------------------------------------------------------------------------------------

// Called in the caller's thread while it waits for other ranks on the host.
void GpuCollectives::tick() {
  calls_.transport->check();
  calls_.poll();
}

// All ranks must begin their calls in the same order, so this waits for running asynchronous calls.
template <typename Step>
void GpuCollectives::in_order(const Gpu& gpu, Step step) {
  const auto and_tell = [&](Call& meeting) {
    const OnDevice there(CudaLibrary::get(), gpu.device);
    bool more = false;
    calls_.telling_others([&] { more = step(meeting); });
    return more;
  };
  Stepping steps(and_tell);
  progress_.run(steps);
}

void GpuCollectives::enqueue(const Call& call, std::optional<void*> stream) {
  // Another thread, or the thread of another call, would take it for another stream.
  if (stream && is_per_thread(*stream)) return enqueue_beside(call, stream)->let_wait(*stream);
  const Ready on = ready(call.device, means_of(call));
  Launch how{stream ? without_alias(*stream) : on.gpu->stream.get()};
  bool launched = false;
  const Counted on_its_way(launching_);
  in_order(*on.gpu, [&](Call& meeting) {
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
  calls_.transport->check();  // others may have left while this call waited for its turn
  const CudaLibrary& cuda = CudaLibrary::get();
  int captured = 0;
  CudaLibrary::check(cuda.is_captured(&captured, how.stream));
  how.captured = captured != 0;
  const Plan& plan = on.runner.plan(calls_.planner, call, how);
  const std::size_t bytes = std::max(bytes_of_input(call, calls_.world, calls_.rank),
                                     bytes_of_output(call, calls_.world, calls_.rank));
  const Record& record = calls_.note(plan, bytes, call.bucket);
  calls_.finish();  // the GPU continues
  how.contract = record.history;
  last_launched_ = record.sequence;
  if (!captured && on.gpu->last_event && on.gpu->last_stream != how.stream) {
    CudaLibrary::check(cuda.wait(on.gpu->last_event, how.stream));
  }
  if (captured) on.gpu->hold_in_graph(how.stream);
  on.runner.launch(call, plan, how);
}

std::shared_ptr<GpuWork> GpuCollectives::enqueue_beside(const Call& call, std::optional<void*> stream) {
  void* const own = ready(call.device, means_of(call)).gpu->stream.get();
  auto work = std::make_shared<GpuWork>(call.device);
  if (stream) {
    work->record(*stream);
    work->let_wait(own);
  }
  enqueue(call, own);
  work->record(own);
  return work;
}

void GpuCollectives::register_memory(int device, void* memory, std::size_t bytes) {
  const Ready on = ready(device, For::calls_over_nccl);
  in_order(*on.gpu, [&](Call&) { return on.runner.register_memory(memory, bytes), false; });
}

void GpuCollectives::deregister_memory(int device, void* memory) {
  const Ready on = ready(device, For::calls_over_nccl);
  in_order(*on.gpu, [&](Call&) { return on.runner.deregister_memory(memory), false; });
}

// --- the end -----------------------------------------------------------------------------------------------

void GpuCollectives::finish() {
  const auto all = runners();
  while (!calls_.is_over() && !is_idle()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    calls_.poll();
  }
  for (const auto& runner : all) {
    if (!calls_.is_over()) runner->finish(calls_.options.timeout, [this] { calls_.poll(); });
  }
}

// Whether nothing is running, and nothing will once the group is over.
bool GpuCollectives::is_idle() {
  if (launching_ > 0) return false;
  const auto all = runners();
  return std::all_of(all.begin(), all.end(), [](const auto& runner) { return runner->is_idle(); });
}

// Releasing one of them waits for the GPU, and so for the other's work there.
void GpuCollectives::leave() {
  const std::lock_guard no_meeting(meeting_);
  bool idle = false;
  try {
    idle = is_idle();
  } catch (const Error&) {  // the GPU has failed
  }
  for (const auto& runner : runners()) runner->give_up();
  // Others may wait for a call that this rank has recorded, but now does not make.
  if (!idle) {
    calls_.transport->abort(
        Failure(Cause::peer_lost, calls_.rank,
                "rank " + std::to_string(calls_.rank) + " left while a collective was running on its GPU"));
  }
  watch_.reset();
  std::shared_ptr<Gpu> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(gpu_);
  }
  Gpu::give_back(std::move(left));
}

void GpuCollectives::disown() {
  if (watch_) watch_->disown();
  static_cast<void>(new std::shared_ptr<Gpu>(std::move(gpu_)));
}

}  // namespace ringreduce
