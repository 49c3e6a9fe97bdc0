// Messages between two ranks' arrays in GPU memory.
#include "gpu/calls/collectives.h"
#include "gpu/calls/gpu.h"
#include "gpu/calls/work.h"
#include "gpu/runner/messenger.h"
#include "transport/interface/errors.h"

namespace ringreduce {

Messenger* GpuCollectives::messenger() const {
  for (std::size_t path = 0; gpu_ && path < gpu_->runners.size(); ++path) {
    Runner* const runner = gpu_->runners[path].get();
    if (runner && runner->messenger()) return runner->messenger();
  }
  return nullptr;
}

bool GpuCollectives::carries_messages() {
  const std::lock_guard lock(mutex_);
  return messenger() != nullptr;
}

// The ranks cannot meet for a message, because only two of them know of it.
auto GpuCollectives::for_messages(int device) -> Carrying {
  calls_.check_usable();
  const std::lock_guard lock(mutex_);
  Messenger* const found = messenger();
  if (!found) {
    throw InvalidArgument(
        "messages between GPUs need NCCL, or kernels, that all ranks have prepared: call "
        "comm.prepare(device) before the first collective of arrays in GPU memory. Kernels carry them only "
        "between ranks of one host, and while half of the GPU's thread blocks are free");
  }
  gpu_->check_is(device);
  return {gpu_, *found};
}

void GpuCollectives::launch(const Carrying& on, std::span<const Transfer> transfers, void* stream) {
  const OnDevice there(CudaLibrary::get(), on.gpu->device);
  calls_.guarded([&] {
    calls_.telling_others([&] {
      calls_.transport->check();
      Launch how{stream};
      int captured = 0;
      CudaLibrary::check(CudaLibrary::get().is_captured(&captured, stream));
      how.captured = captured != 0;
      if (how.captured) on.gpu->hold_in_graph(stream);
      on.messenger.launch(transfers, how);
      for (const Transfer& one : transfers) calls_.messages.count(one);
    });
  });
}

void GpuCollectives::exchange(int device, std::span<const Transfer> transfers, std::optional<void*> stream) {
  if (transfers.empty()) return;
  if (stream && is_per_thread(*stream)) {
    return exchange_beside(device, transfers, stream, {})->let_wait(*stream);
  }
  const Counted on_its_way(launching_);
  const Carrying on = for_messages(device);
  launch(on, transfers, stream ? without_alias(*stream) : on.gpu->stream.get());
}

// On a stream of the first message's pair.
std::shared_ptr<DeviceWork> GpuCollectives::exchange_beside(int device, std::span<const Transfer> transfers,
                                                            std::optional<void*> stream, Arrays arrays) {
  const Counted on_its_way(launching_);
  const Carrying on = for_messages(device);
  void* const own = on.messenger.stream_for(transfers.front());
  auto work = work_beside(device, stream, own, std::move(arrays));
  launch(on, transfers, own);
  work->launched(own);
  return work;
}

}  // namespace ringreduce
