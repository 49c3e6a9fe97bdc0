#include "gpu/hosts/runner.h"

#include <thread>

#include "gpu/runner/whereabouts.h"
#include "transport/interface/exchange.h"

namespace ringreduce {

// A stream that waits for the host must not hold up another rank's copy to the host.
HostsRunner::HostsRunner(int rank, int world, int device, const Exchange& exchange,
                         const std::function<std::unique_ptr<Communicator>()>& another)
    : Runner(rank, world, device),
      event_(new_event(cuda_, device)),
      words_(cuda_, DeviceMemory::on_host, 2 * sizeof(std::uint64_t)),
      begun_(reinterpret_cast<std::uint64_t*>(words_.at())),
      ended_(begun_ + 1) {
  *begun_ = *ended_ = 0;
  check_queues(exchange_values_or_fail(exchange, [&] { return whereabouts_of(cuda_, device_); }));
  staging_ = std::make_unique<Staging>(another());
}

HostsRunner::~HostsRunner() {
  give_up();
  try {
    while (!is_last_over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (const Error&) {  // a GPU that has failed does nothing any more
  }
}

// The CPU's plan is what the other group runs.
const Plan& HostsRunner::plan(Planner& planner, const Call& call, const Launch& launch) {
  if (launch.captured) {
    throw InvalidArgument(
        "stream is being captured, but calls of this group go through the CPU, which a graph cannot repeat; "
        "NCCL can (RINGREDUCE_GPU_TRANSPORT=nccl)");
  }
  const Plan& plan = planner.plan(call);
  const Planner::Custom* const custom = planner.custom(call.algorithm);
  algorithm_ = custom ? staging_->same_algorithm(call.algorithm, *custom) : call.algorithm;
  return plan;
}

void HostsRunner::launch(const Call& call, const Plan&, const Launch& launch) {
  Call here = call;
  here.algorithm = algorithm_;
  CudaLibrary::check(cuda_.post(begun_, ++launched_, launch.stream));
  try {
    staging_->launch(here, launch.stream);
  } catch (const Failure&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.what());  // even if it is closed, or refuses: launched work runs elsewhere
  }
  CudaLibrary::check(cuda_.post(ended_, launched_, launch.stream));
  record_last(event_.get(), launch.stream);
}

}  // namespace ringreduce
