#include "gpu/device/cuda/entry_points.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "gpu/device/cuda/driver.h"
#include "gpu/device/cuda/virtual_memory.h"
#include "gpu/reduce/errors.h"
#include "gpu/reduce/failures.h"

using ringreduce::device::check;
using ringreduce::device::Driver;
using ringreduce::device::failure_of;

namespace {

cudaStream_t stream_at(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

cudaEvent_t event_at(void* event) {
  return static_cast<cudaEvent_t>(event);
}

}  // namespace

const char* ringreduce_cuda_count_devices(int* count) {
  return failure_of([&] { check(cudaGetDeviceCount(count), "counting devices"); });
}

const char* ringreduce_cuda_name_device(char* name, std::size_t room) {
  return failure_of([&] {
    int device = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&properties, device), "device");
    std::snprintf(name, room, "%s, compute capability %d.%d, %d multiprocessors", properties.name,
                  properties.major, properties.minor, properties.multiProcessorCount);
  });
}

const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes, void* stream) {
  return failure_of(
      [&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_at(stream)), "copy"); });
}

const char* ringreduce_cuda_move_all(void* const* to, const void* const* from, const std::size_t* bytes,
                                     int count, void* stream) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    const bool is_legacy = !stream || stream == cudaStreamLegacy;
    if (driver.can_copy_beside() && !is_legacy) {
      return driver.copy_beside(to, from, bytes, static_cast<std::size_t>(count), stream_at(stream));
    }
    for (int i = 0; i < count; ++i) {
      check(cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream_at(stream)), "copy");
    }
  });
}

const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return failure_of([&] { check(cudaMemsetAsync(memory, byte, bytes, stream_at(stream)), "fill"); });
}

const char* ringreduce_cuda_create_stream(void** stream) {
  return ringreduce_cuda_create_stream_with_priority(stream, 0);
}

const char* ringreduce_cuda_create_stream_with_priority(void** stream, int priority) {
  return failure_of([&] {
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, priority), "stream");
    *stream = created;
  });
}

const char* ringreduce_cuda_destroy_stream(void* stream) {
  return failure_of([&] { check(cudaStreamDestroy(stream_at(stream)), "stream"); });
}

const char* ringreduce_cuda_synchronize(void* stream) {
  return failure_of([&] { check(cudaStreamSynchronize(stream_at(stream)), "waiting for the stream"); });
}

const char* ringreduce_cuda_create_event(void** event, int timed) {
  return failure_of([&] {
    cudaEvent_t created = nullptr;
    check(cudaEventCreateWithFlags(&created, timed ? cudaEventDefault : cudaEventDisableTiming), "event");
    *event = created;
  });
}

const char* ringreduce_cuda_destroy_event(void* event) {
  return failure_of([&] { check(cudaEventDestroy(event_at(event)), "event"); });
}

const char* ringreduce_cuda_record(void* event, void* stream) {
  return failure_of([&] { check(cudaEventRecord(event_at(event), stream_at(stream)), "event"); });
}

const char* ringreduce_cuda_post(std::uint64_t* word, std::uint64_t value, void* stream) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    driver.check(driver.write_value(stream_at(stream), reinterpret_cast<CUdeviceptr>(word), value,
                                    CU_STREAM_WRITE_VALUE_DEFAULT),
                 "telling the host");
  });
}

const char* ringreduce_cuda_hold(const std::uint64_t* word, std::uint64_t value, void* stream) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    driver.check(driver.wait_value(stream_at(stream), reinterpret_cast<CUdeviceptr>(word), value,
                                   CU_STREAM_WAIT_VALUE_GEQ),
                 "waiting for the host");
  });
}

const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end) {
  return failure_of(
      [&] { check(cudaEventElapsedTime(milliseconds, event_at(begin), event_at(end)), "event"); });
}

const char* ringreduce_cuda_begin_capture(void* stream, int mode) {
  return failure_of([&] {
    check(cudaStreamBeginCapture(stream_at(stream), static_cast<cudaStreamCaptureMode>(mode)),
          "beginning of capture");
  });
}

const char* ringreduce_cuda_end_capture(void** graph, void* stream) {
  return failure_of([&] {
    cudaGraph_t captured = nullptr;
    check(cudaStreamEndCapture(stream_at(stream), &captured), "end of capture");
    cudaGraphExec_t ready = nullptr;
    const cudaError_t result = cudaGraphInstantiateWithFlags(&ready, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    check(result, "graph");
    *graph = ready;
  });
}

const char* ringreduce_cuda_launch_graph(void* graph, void* stream) {
  return failure_of(
      [&] { check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_at(stream)), "graph"); });
}

const char* ringreduce_cuda_destroy_graph(void* graph) {
  return failure_of([&] { check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "graph"); });
}

const char* ringreduce_cuda_current_device(int* device) {
  return failure_of([&] { check(cudaGetDevice(device), "device"); });
}

const char* ringreduce_cuda_choose_device(int device) {
  return failure_of([&] { check(cudaSetDevice(device), "device " + std::to_string(device)); });
}

// CUDA's runtime reports a current device even if the thread has none.
const char* ringreduce_cuda_enter_device(void** before, int device) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    CUcontext context = nullptr;
    const CUresult result = driver.get_context(&context);
    if (result != CUDA_ERROR_NOT_INITIALIZED) driver.check(result, "context");
    check(cudaSetDevice(device), "device " + std::to_string(device));
    *before = context;
  });
}

const char* ringreduce_cuda_leave_device(void* before) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    driver.check(driver.set_context(static_cast<CUcontext>(before)), "context");
  });
}

const char* ringreduce_cuda_identify_device(char* identity, int device) {
  return failure_of([&] {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "device");
    static_assert(sizeof properties.uuid.bytes == ringreduce::device::identity_bytes);
    std::memcpy(identity, properties.uuid.bytes, sizeof properties.uuid.bytes);
  });
}

const char* ringreduce_cuda_device_of(int* device, const void* memory) {
  return failure_of([&] {
    const Driver& driver = Driver::get();
    unsigned type = 0;  // stays 0 for memory that CUDA does not know, which is the host's
    int ordinal = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* answers[] = {&type, &ordinal};
    driver.check(driver.attributes_of(2, asked, answers, reinterpret_cast<CUdeviceptr>(memory)),
                 "looking up memory");
    *device = type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? ordinal : -1;
  });
}

const char* ringreduce_cuda_reach(int other) {
  return failure_of([&] {
    const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      check(result, "accessing the memory of device " + std::to_string(other));
    }
  });
}

const char* ringreduce_cuda_admit(const int* devices, int count, const void* memory, std::size_t bytes) {
  return failure_of([&] {
    if (bytes > 0) ringreduce::device::admit({devices, devices + count}, memory, bytes);
  });
}

const char* ringreduce_cuda_allocate_on_host(void** memory, std::size_t bytes) {
  return failure_of([&] {
    check(cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "host memory");
    std::memset(*memory, 0, bytes);
  });
}

const char* ringreduce_cuda_free_on_host(void* memory) {
  return failure_of([&] { check(cudaFreeHost(memory), "host memory"); });
}

const char* ringreduce_cuda_pin_on_host(void** at, void* memory, std::size_t bytes) {
  return failure_of([&] {
    check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "host memory");
    check(cudaHostGetDevicePointer(at, memory, 0), "host memory");
  });
}

const char* ringreduce_cuda_unpin_on_host(void* memory) {
  return failure_of([&] { check(cudaHostUnregister(memory), "host memory"); });
}

const char* ringreduce_cuda_is_captured(int* captured, void* stream) {
  return failure_of([&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_at(stream), &status), "stream");
    *captured = status != cudaStreamCaptureStatusNone ? 1 : 0;
  });
}

const char* ringreduce_cuda_hold_in_graph(void* stream, void* object, void (*drop)(void*)) {
  return failure_of([&] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    check(cudaStreamGetCaptureInfo(stream_at(stream), &status, nullptr, &graph), "graph");
    cudaUserObject_t held = nullptr;
    check(cudaUserObjectCreate(&held, object, drop, 1, cudaUserObjectNoDestructorSync), "graph");
    check(cudaGraphRetainUserObject(graph, held, 1, cudaGraphUserObjectMove), "graph");
  });
}

const char* ringreduce_cuda_exchange_capture_mode(int* mode) {
  return failure_of([&] {
    static_assert(cudaStreamCaptureModeGlobal == 0 && cudaStreamCaptureModeRelaxed == 2);
    auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
    check(cudaThreadExchangeStreamCaptureMode(&exchanged), "capture");
    *mode = exchanged;
  });
}

const char* ringreduce_cuda_wait(void* event, void* stream) {
  return failure_of([&] { check(cudaStreamWaitEvent(stream_at(stream), event_at(event), 0), "event"); });
}

const char* ringreduce_cuda_is_over(int* over, void* event) {
  return failure_of([&] {
    const cudaError_t result = cudaEventQuery(event_at(event));
    if (result != cudaErrorNotReady) check(result, "event");
    *over = result == cudaSuccess ? 1 : 0;
  });
}
