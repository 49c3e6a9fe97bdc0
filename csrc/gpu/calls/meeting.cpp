// How ranks meet for their first call, and choose what runs it.
#include <algorithm>

#include "gpu/calls/collectives.h"
#include "gpu/calls/gpu.h"
#include "gpu/calls/watch.h"
#include "gpu/hosts/runner.h"
#include "gpu/kernels/runner.h"
#include "gpu/nccl/runner.h"
#include "transport/interface/environment.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr const char* transport_variable = "RINGREDUCE_GPU_TRANSPORT";

std::string wanted_by_environment() {
  const std::string value = environment(transport_variable, {"auto", "cuda", "nccl"});
  return value == "auto" ? "" : value;
}

// The number of each rank's host; equal numbers if all share one.
std::vector<int> hosts_of(const Transport& transport) {
  const std::vector<int> hosts = transport.facts().hosts;
  return hosts.empty() ? transport.reports.machine : hosts;
}

bool has_several_hosts(const Transport& transport) {
  const std::vector<int> hosts = hosts_of(transport);
  return transport.facts().distant ||
         std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
}

// RINGREDUCE_GPU_TRANSPORT, the same on all ranks. A collective.
std::string agree_on_wanted(const Exchange& exchange) {
  const std::vector<std::string> wanted = exchange_or_fail(exchange, wanted_by_environment);
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (wanted[rank] == wanted[0]) continue;
    const auto named = [](const std::string& value) { return value.empty() ? "unset" : value; };
    throw Error(std::string(transport_variable) + " is " + named(wanted[0]) + " on rank 0 and " +
                named(wanted[rank]) + " on rank " + std::to_string(rank));
  }
  return wanted[0];
}

}  // namespace

auto GpuCollectives::means_of(const Call& call) -> For {
  return call.algorithm == by_nccl ? For::calls_over_nccl : For::calls;
}

// As RINGREDUCE_GPU_TRANSPORT says, or else what works where the ranks are. A collective.
GpuCollectives::Path GpuCollectives::agree_on_path() {
  const std::string wanted = agree_on_wanted(exchange_);
  if (wanted == "nccl") return over_nccl;
  may_use_nccl_ = wanted != "cuda";
  const bool several_hosts = has_several_hosts(*calls_.transport);
  if (!several_hosts && calls_.world <= device::most_ranks) return reaching_peers;
  const std::string problem = why_not_nccl();
  if (problem.empty()) return over_nccl;
  const TransportFacts& facts = calls_.transport->facts();
  if (!facts.for_devices) {
    throw InvalidArgument("transport " + facts.name + " carries no arrays in GPU memory, and NCCL cannot: " +
                          problem + ". Choose transport shm+tcp, which takes them through the CPU");
  }
  const std::string why =
      several_hosts ? " between hosts: "
                    : ", because kernels serve at most " + std::to_string(device::most_ranks) + " ranks: ";
  calls_.say(log::Level::info, "arrays in GPU memory go through the CPU" + why + problem);
  return over_hosts;
}

// On some rank; the same on all. A collective.
std::string GpuCollectives::why_not_nccl() {
  if (!may_use_nccl_) return std::string(transport_variable) + " is cuda";
  try {
    exchange_or_fail(exchange_, [] { return NcclLibrary::get(), std::string(); });
    return "";
  } catch (const Failure&) {
    throw;
  } catch (const Error& error) {
    calls_.check_usable();
    return error.what();
  }
}

// A collective, the first time. Either all ranks fail, or none.
GpuCollectives::Ready GpuCollectives::ready(int device, For what) {
  const bool over_nccl_anyway = what == For::calls_over_nccl;
  const auto one_at_a_time = calls_.take_turn(meeting_, "a call with arrays in GPU memory", {});
  calls_.check_usable();
  if (!over_nccl_anyway && !path_of_schedules_) {
    path_of_schedules_ = agree_on_path();
  }
  const bool messages = what == For::calls_and_messages;
  Path path = over_nccl_anyway ? over_nccl : *path_of_schedules_;
  std::shared_ptr<Gpu> gpu = gpu_;
  if (!gpu || !gpu->runners[path]) {
    exchange_or_fail(exchange_, [&] {
      calls_.transport->check_background();  // the watch's thread needs it, and others
      const OnDevice there(CudaLibrary::get(), device);
      Gpu::give_back(nullptr);
      if (!gpu) gpu = std::make_shared<Gpu>(device, calls_.options.gpu.priority);
      const std::lock_guard lock(mutex_);
      if (!watch_)
        watch_ = std::make_unique<Watch>(calls_, [this] { return this->runners(); }, last_launched_);
      return std::string();
    });
    std::unique_ptr<Runner> runner;
    try {
      runner = meet(*gpu, path, messages);
    } catch (const NoRoom& full) {
      path_of_schedules_ = path = instead_of_kernels(full);
      if (!gpu->runners[path]) runner = meet(*gpu, path, messages);
    }
    calls_.say(log::Level::info, "arrays of GPU " + std::to_string(device) + " are combined " +
                                     (path == over_nccl        ? "over NCCL"
                                      : path == reaching_peers ? "by kernels that access their peers' memory"
                                                               : "on the CPU"));
    const std::lock_guard lock(mutex_);
    if (runner) gpu->runners[path] = std::move(runner);
    gpu_ = gpu;
  }
  gpu->check_is(device);
  return {gpu, *gpu->runners[path]};
}

// Where other groups have all thread blocks. A collective.
GpuCollectives::Path GpuCollectives::instead_of_kernels(const NoRoom& full) {
  if (!full.apart) throw full;
  const std::string problem = why_not_nccl();
  if (!problem.empty()) throw Error(std::string(full.what()) + " (" + problem + ")");
  calls_.say(log::Level::info, full.what());
  return over_nccl;
}

std::unique_ptr<Runner> GpuCollectives::meet(const Gpu& gpu, Path path, bool messages) {
  const int rank = calls_.rank, world = calls_.world;
  const GpuOptions& options = calls_.options.gpu;
  if (path == over_nccl) {
    return std::make_unique<NcclRunner>(rank, world, gpu.device, calls_.options.reproducible, messages,
                                        options, calls_.transport->facts().hosts, calls_.options.timeout,
                                        exchange_, [this] { tick(); });
  }
  if (path == over_hosts) {
    return std::make_unique<HostsRunner>(rank, world, gpu.device, exchange_, another_);
  }
  auto boxes = std::make_unique<DeviceBoxes>(CudaLibrary::get(), gpu.device, rank, world, exchange_,
                                             gpu.stream.get(), messages, options);
  auto buffers = reaching_arrays(*boxes, gpu.device);
  std::unique_ptr<CopyEngine> copy_engine;
  if (boxes->wants_copy_engine() && (buffers || boxes->one_process())) {
    copy_engine = std::make_unique<CopyEngine>(CudaLibrary::get(), gpu.device, rank, world,
                                               boxes->one_process(), exchange_);
  }
  std::unique_ptr<Runner> runner;
  // Allocations may wait for everything that runs on the GPU, so no rank launches before all have what they
  // need.
  exchange_or_fail(exchange_, [&] {
    const OnDevice there(CudaLibrary::get(), gpu.device);
    runner = std::make_unique<KernelRunner>(rank, world, gpu.device, options.priority, std::move(boxes),
                                            std::move(buffers), std::move(copy_engine));
    return std::string();
  });
  return runner;
}

// For ranks that are processes, unless one of them cannot; then null on all ranks. Not for processes with
// several ranks: CUDA may map memory only when everything that runs has finished, and one rank would wait to
// launch what others wait for.
std::unique_ptr<Buffers> GpuCollectives::reaching_arrays(const DeviceBoxes& boxes, int device) {
  if (boxes.one_process() || !boxes.own_processes()) return nullptr;
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
