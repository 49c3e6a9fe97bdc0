#include "gpu/calls/gpu.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "transport/interface/errors.h"

namespace ringreduce {

void Gpu::check_is(int device_of_array) const {
  if (device_of_array == device) return;
  throw InvalidArgument("the array is on GPU " + std::to_string(device_of_array) +
                        ", but this rank's calls run on GPU " + std::to_string(device));
}

void Gpu::hold_in_graph(void* captured) const {
  auto held = std::make_unique<Held>(held_);
  CudaLibrary::check(CudaLibrary::get().hold_in_graph(
      captured, held.get(), [](void* object) { delete static_cast<Held*>(object); }));
  [[maybe_unused]] const Held* const of_the_graph = held.release();
}

void Gpu::give_back(std::shared_ptr<Gpu> left) {
  static std::mutex mutex;
  static auto& in_graphs = *new std::vector<std::shared_ptr<Gpu>>;  // never destroyed
  std::vector<std::shared_ptr<Gpu>> free;  // destroying them waits for the GPU, without the lock
  const std::lock_guard lock(mutex);
  if (left) in_graphs.push_back(std::move(left));
  const auto end = std::partition(in_graphs.begin(), in_graphs.end(),
                                  [](const auto& gpu) { return gpu->held_.use_count() > 1; });
  free.assign(std::make_move_iterator(end), std::make_move_iterator(in_graphs.end()));
  in_graphs.erase(end, in_graphs.end());
}

}  // namespace ringreduce
