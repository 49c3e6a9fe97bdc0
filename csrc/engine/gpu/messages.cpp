// Messages between two ranks' arrays in GPU memory.
#include "engine/gpu/collectives.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/kernels/messenger.h"
#include "engine/gpu/work.h"
#include "transport/interface/errors.h"

namespace ringreduce {

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
        "the first collective of arrays in GPU memory. It helps only if all ranks are on one host, their "
        "kernels run at the same time, and each has four times as many thread blocks as there are ranks");
  }
  const std::lock_guard lock(mutex_);
  gpu_->check_is(device);
  return gpu_;
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

}  // namespace ringreduce
