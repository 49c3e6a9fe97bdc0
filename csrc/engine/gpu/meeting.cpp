// How ranks meet for their first call, and choose what runs it.
#include <algorithm>

#include "engine/gpu/collectives.h"
#include "engine/gpu/events/runner.h"
#include "engine/gpu/gpu.h"
#include "engine/gpu/kernels/runner.h"
#include "engine/gpu/nccl/runner.h"
#include "engine/gpu/watch.h"
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

}  // namespace

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
  gpu->check_is(device);
  return {gpu, *gpu->runners[path]};
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

}  // namespace ringreduce
