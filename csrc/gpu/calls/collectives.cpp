#include "gpu/calls/collectives.h"

#include <algorithm>

#include "gpu/calls/gpu.h"
#include "gpu/calls/watch.h"
#include "gpu/calls/work.h"
#include "reduce/identity.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

// A step on the GPU, which contains no collective of the CPU's.
template <typename Step>
class OnlyStep : public Steps {
 public:
  explicit OnlyStep(Step& step) : step_(step) {}
  bool next(Call&) override { return step_(), false; }

 private:
  Step& step_;
};

// Writes one element byte by byte, and doubles what is written.
void fill_with_identity(const Call& call, void* stream) {
  const CudaLibrary& cuda = CudaLibrary::get();
  auto* const array = static_cast<char*>(call.output);
  const std::size_t element = size_of(call.dtype), all = call.count * element;
  const std::uint64_t identity = identity_of(call.dtype, call.op);
  if (all == 0 || !array) return;
  for (std::size_t i = 0; i < element; ++i) {
    const int byte = i < 8 ? static_cast<int>(identity >> 8 * i & 0xff) : 0;
    CudaLibrary::check(cuda.fill(array + i, byte, 1, stream));
  }
  for (std::size_t done = element; done < all; done *= 2) {
    CudaLibrary::check(cuda.move(array + done, array, std::min(done, all - done), stream));
  }
}

}  // namespace

GpuCollectives::GpuCollectives(Calls& calls, Progress& progress, Exchange exchange, Another another)
    : calls_(calls), progress_(progress), exchange_(std::move(exchange)), another_(std::move(another)) {}

GpuCollectives::~GpuCollectives() = default;

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

auto GpuCollectives::holdings() -> Holdings {
  Holdings found;
  for (const auto& runner : runners()) {
    found.bytes += runner->footprint();
    found.was_direct = found.was_direct || runner->was_direct();
  }
  const std::lock_guard lock(mutex_);
  if (gpu_) found.stream = gpu_->stream.get();
  return found;
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
  const auto and_tell = [&] {
    const OnDevice there(CudaLibrary::get(), gpu.device);
    calls_.telling_others(step);
  };
  OnlyStep only(and_tell);
  progress_.run(only);
}

void GpuCollectives::enqueue(const Call& call, std::optional<void*> stream) {
  // Another thread, or the thread of another call, would take it for another stream.
  if (stream && is_per_thread(*stream)) return enqueue_beside(call, stream, {})->let_wait(*stream);
  const Ready on = ready(call.device, means_of(call));
  Launch how{stream ? without_alias(*stream) : on.gpu->stream.get()};
  const Counted on_its_way(launching_);
  in_order(*on.gpu, [&] {
    launch(on, call, how);
    if (how.captured) return;
    on.gpu->last_event = on.runner.last();
    on.gpu->last_stream = how.stream;
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
  if (gets_identity(call, calls_.rank)) fill_with_identity(call, how.stream);
}

std::shared_ptr<DeviceWork> GpuCollectives::enqueue_beside(const Call& call, std::optional<void*> stream,
                                                           Arrays arrays) {
  void* const own = ready(call.device, means_of(call)).gpu->stream.get();
  auto work = work_beside(call.device, stream, own, std::move(arrays));
  enqueue(call, own);
  work->launched(own);
  return work;
}

// A new work, for what follows the stream's work on our own. Its arrays stay until it is done, or until the
// group is left if an exception comes before it is recorded.
std::shared_ptr<GpuWork> GpuCollectives::work_beside(int device, std::optional<void*> stream, void* own,
                                                     Arrays arrays) {
  auto work = std::make_shared<GpuWork>(device);
  if (stream) {
    work->record(*stream);
    work->let_wait(own);
  }
  if (!arrays) return work;
  const std::lock_guard lock(mutex_);
  while (!beside_.empty() && beside_.front().first->is_over()) beside_.pop_front();
  beside_.emplace_back(work, std::move(arrays));
  return work;
}

// With kernels, and with NCCL if the ranks have met there, too.
void GpuCollectives::register_memory(int device, void* memory, std::size_t bytes) {
  const Ready on = ready(device, For::calls);
  const auto one_at_a_time = calls_.take_turn(meeting_, "register", {});
  const OnDevice there(CudaLibrary::get(), device);
  struct Wanted {
    std::uint64_t bytes, is_registered;
  };
  const std::vector<Wanted> all =
      exchange_values(exchange_, calls_.world, Wanted{bytes, registered_.count(memory)});
  for (int rank = 0; rank < calls_.world; ++rank) {
    const auto refuse = [&](const std::string& why) {
      throw InvalidArgument("rank " + std::to_string(rank) + ": x " + why);
    };
    if (all[rank].is_registered != 0) refuse("is already registered");
    if (all[rank].bytes == 0) refuse("is empty");
    if (all[rank].bytes == all[0].bytes) continue;
    refuse("has " + std::to_string(all[rank].bytes) + " bytes, but that of rank 0 has " +
           std::to_string(all[0].bytes));
  }
  registered_.insert(memory);
  try {
    for (const auto& runner : runners()) runner->register_memory(memory, bytes, exchange_);
  } catch (...) {
    for (const auto& runner : runners()) runner->deregister_memory(memory);
    registered_.erase(memory);
    throw;
  }
}

void GpuCollectives::deregister_memory(int device, void* memory) {
  const Ready on = ready(device, For::calls);
  const auto one_at_a_time = calls_.take_turn(meeting_, "deregister", {});
  if (registered_.erase(memory) == 0) throw InvalidArgument("x is not registered");
  in_order(*on.gpu, [&] {
    for (const auto& runner : runners()) runner->deregister_memory(memory);
  });
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
  std::unique_lock no_meeting(meeting_, std::defer_lock);
  if (!Turn::is_held_here(&meeting_)) no_meeting.lock();
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
  decltype(beside_) beside;  // until the GPU is given back
  {
    const std::lock_guard lock(mutex_);
    left.swap(gpu_);
    beside.swap(beside_);
  }
  Gpu::give_back(std::move(left));
}

void GpuCollectives::disown() {
  if (watch_) watch_->disown();
  static_cast<void>(new std::shared_ptr<Gpu>(std::move(gpu_)));
  static_cast<void>(new decltype(beside_)(std::move(beside_)));
}

}  // namespace ringreduce
