#include "fronts/torch/device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <thread>

#include "fronts/torch/backend.h"
#include "fronts/torch/gil.h"

namespace ringreduce::torch_backend {
namespace {

using c10::impl::VirtualGuardImpl;

constexpr auto ask_gpu_every = std::chrono::milliseconds(1);  // an event, while the caller waits

// CUDA's handle of a stream. Later versions of torch return it here, and all versions in Python.
template <typename Guard>
void* handle_of(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    try {
      return guard.getStreamNativeHandle(stream);
    } catch (const c10::Error&) {  // not one of CUDA's streams yet
    }
  }
  namespace py = pybind11;
  const WithGil locked;
  return or_stay([&] {
    const py::object same =
        py::module_::import("torch.cuda")
            .attr("Stream")(py::arg("stream_id") = stream.id(),
                            py::arg("device_index") = static_cast<int>(stream.device_index()),
                            py::arg("device_type") = static_cast<int>(stream.device_type()));
    return reinterpret_cast<void*>(same.attr("cuda_stream").cast<std::uintptr_t>());
  });
}

// The caching allocator must not reuse this memory before the stream has finished with it.
void keep_until_done(const Tensors& tensors, const VirtualGuardImpl& guard, const c10::Stream& stream) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  }
}

}  // namespace

std::optional<c10::Device> gpu_of(const char* what, const Tensors& inputs,
                                  const std::vector<Tensors>& outputs) {
  const at::Tensor* first = nullptr;
  const auto look_at = [&](const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!first) first = &tensor;
      check_together(what, *first, tensor);
    }
  };
  look_at(inputs);
  for (const Tensors& list : outputs) look_at(list);
  if (!first || first->is_cpu()) return std::nullopt;
  return first->device();
}

const OwnStream& OwnStreams::of(c10::Device device, int use) {
  const auto key = std::pair(device.index(), use);
  {
    const std::lock_guard lock(mutex_);
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second;
  }
  // Without the lock, as it may take the GIL.
  const VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStreamFromGlobalPool(device, high_priority_);
  void* const handle = handle_of(guard, stream);
  const std::lock_guard lock(mutex_);
  return made_.try_emplace(key, OwnStream{stream, handle}).first->second;
}

// --- what torch gets -------------------------------------------------------------------------------------

DeviceWork::DeviceWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence,
                       c10::Stream stream, const Tensors& inputs, std::vector<Tensors> outputs)
    : Work(rank, type, title, inputs),
      sequence_(sequence),
      stream_(stream),
      end_(stream.device_type()),
      outputs_(std::move(outputs)) {}

void DeviceWork::launched() {
  end_.record(stream_);
  finish();
}

bool DeviceWork::isCompleted() {
  return end_.query();
}

void DeviceWork::synchronize() {
  end_.block(VirtualGuardImpl(stream_.device_type()).getStream(stream_.device()));
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  const StaysAtEnd here;
  synchronize();
  if (timeout == kNoTimeout) return true;
  const auto start = std::chrono::steady_clock::now();
  while (!isCompleted()) {
    raise_if_interrupted();
    if (std::chrono::steady_clock::now() - start >= timeout) {
      C10_THROW_ERROR(DistBackendError, "ringreduce: wait() gave up after " +
                                            std::to_string(timeout.count()) +
                                            " ms; the operation itself continues");
    }
    std::this_thread::sleep_for(ask_gpu_every);
  }
  return true;
}

void DeviceWork::abort() {
  C10_THROW_ERROR(Error, "ringreduce: a single operation cannot be aborted; abort the process group instead");
}

Tensors DeviceWork::result() {
  TORCH_CHECK(outputs_.size() <= 1, "ringreduce: this operation has several results; use get_future()");
  return outputs_.empty() ? Tensors() : outputs_.front();
}

// Complete at once, on the stream: the future orders uses of its value behind it.
c10::intrusive_ptr<Future> DeviceWork::getFuture() {
  const std::lock_guard lock(future_mutex_);
  if (future_) return future_;
  const bool several = outputs_.size() > 1;
  auto type = c10::TypePtr(c10::ListType::ofTensors());
  if (several) type = c10::ListType::create(type);
  future_ = c10::make_intrusive<Future>(type, std::vector<c10::Device>{stream_.device()});
  const c10::StreamGuard there(stream_);
  future_->markCompleted(several ? c10::IValue(outputs_) : c10::IValue(result()));
  return future_;
}

bool StagedWork::isCompleted() {
  if (!work_->isCompleted()) return false;
  if (work_->isSuccess()) deliver();
  return true;
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  work_->wait(timeout);
  deliver();
  return true;
}

Tensors StagedWork::result() {
  TORCH_CHECK(isCompleted(), "ringreduce: result() must be called after wait()");
  return tensors_;
}

c10::intrusive_ptr<Future> StagedWork::getFuture() {
  const auto future = c10::make_intrusive<Future>(c10::ListType::ofTensors(),
                                                  std::vector<c10::Device>{tensors_.front().device()});
  const auto self = c10::intrusive_ptr<StagedWork>::unsafe_reclaim_from_nonowning(this);
  work_->getFuture()->addCallback([self, future](Future& ended) {
    try {
      ended.value();  // or its error
      self->deliver();
      future->markCompleted(self->tensors_);
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  });
  return future;
}

// Returns when the copies are complete, so other streams need not wait.
void StagedWork::deliver() {
  const std::lock_guard lock(mutex_);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (std::size_t i = 0; i < memory_.size(); ++i) tensors_[i].copy_(memory_[i]);
  memory_.clear();
}

// --- launching -------------------------------------------------------------------------------------------

intrusive_ptr<c10d::Work> RingBackend::launch_on(const OwnStream& own, const Operation& operation,
                                                 const Tensors& used,
                                                 const std::function<void(void*)>& launch,
                                                 const Tensors& inputs, std::vector<Tensors> outputs) {
  const StaysAtEnd here;
  const VirtualGuardImpl guard(own.stream.device_type());
  const std::uint64_t number = operation.is_message() ? ++transfers_ : ++sequence_;
  const auto work =
      c10::make_intrusive<DeviceWork>(rank_, operation.type, title_if_asked(operation.title, name_), number,
                                      own.stream, inputs, std::move(outputs));
  c10::Event begin(own.stream.device_type());
  begin.record(guard.getStream(own.stream.device()));
  begin.block(own.stream);
  try {
    const c10::StreamGuard there(own.stream);
    launch(own.handle);
    work->launched();
  } catch (const Trouble& trouble) {
    keep_until_done(used, guard, own.stream);
    failed_by(trouble);
    raise(trouble, *ranks_);
  }
  if (operation.asynchronous || coalescing_) {
    keep_until_done(used, guard, own.stream);
  } else {
    work->synchronize();  // so that reuse of the memory comes after it as well
  }
  return work;
}

intrusive_ptr<c10d::Work> RingBackend::launch_on(c10::Device gpu, const Operation& operation,
                                                 TensorCalls& calls, const Tensors& inputs,
                                                 std::vector<Tensors> outputs) {
  const auto launch = [&](void* stream) {
    for (Call call; calls.next(call); call = Call()) {
      call.device = static_cast<unsigned char>(gpu.index());
      group().enqueue(call, stream);
    }
  };
  const auto work = launch_on(own_streams_.of(gpu, OwnStreams::of_collectives), operation, calls.tensors(),
                              launch, inputs, std::move(outputs));
  collect(work);
  return work;
}

}  // namespace ringreduce::torch_backend
