#include <cuda_runtime_api.h>

#include <cstdio>

#include "reduce/cuda/entry_points.h"
#include "reduce/cuda/errors.h"
#include "reduce/cuda/failures.h"

using ringreduce::device::check;
using ringreduce::device::failure_of;

namespace {

cudaStream_t stream_at(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

cudaEvent_t event_at(void* event) {
  return static_cast<cudaEvent_t>(event);
}

void instantiate(void** graph, cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(stream, &captured), "end of capture");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t result = cudaGraphInstantiateWithFlags(&ready, captured, 0);
  static_cast<void>(cudaGraphDestroy(captured));
  check(result, "graph");
  *graph = ready;
}

void name_device(char* name, std::size_t room) {
  int device = 0;
  cudaDeviceProp properties;
  check(cudaGetDevice(&device), "device");
  check(cudaGetDeviceProperties(&properties, device), "device");
  std::snprintf(name, room, "%s, compute capability %d.%d, %d multiprocessors", properties.name,
                properties.major, properties.minor, properties.multiProcessorCount);
}

}  // namespace

const char* ringreduce_cuda_count_devices(int* count) {
  return failure_of([&] { check(cudaGetDeviceCount(count), "count of devices"); });
}

const char* ringreduce_cuda_name_device(char* name, std::size_t room) {
  return failure_of([&] { name_device(name, room); });
}

const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes) {
  return failure_of([&] { check(cudaMalloc(memory, bytes), "memory"); });
}

const char* ringreduce_cuda_free(void* memory) {
  return failure_of([&] { check(cudaFree(memory), "memory"); });
}

const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes, void* stream) {
  return failure_of(
      [&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_at(stream)), "copy"); });
}

const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return failure_of([&] { check(cudaMemsetAsync(memory, byte, bytes, stream_at(stream)), "fill"); });
}

const char* ringreduce_cuda_create_stream(void** stream) {
  return failure_of([&] {
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "stream");
    *stream = created;
  });
}

const char* ringreduce_cuda_destroy_stream(void* stream) {
  return failure_of([&] { check(cudaStreamDestroy(stream_at(stream)), "stream"); });
}

const char* ringreduce_cuda_synchronize(void* stream) {
  return failure_of([&] { check(cudaStreamSynchronize(stream_at(stream)), "what the stream has done"); });
}

const char* ringreduce_cuda_create_event(void** event) {
  return failure_of([&] {
    cudaEvent_t created = nullptr;
    check(cudaEventCreate(&created), "event");
    *event = created;
  });
}

const char* ringreduce_cuda_destroy_event(void* event) {
  return failure_of([&] { check(cudaEventDestroy(event_at(event)), "event"); });
}

const char* ringreduce_cuda_record(void* event, void* stream) {
  return failure_of([&] { check(cudaEventRecord(event_at(event), stream_at(stream)), "event"); });
}

const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end) {
  return failure_of(
      [&] { check(cudaEventElapsedTime(milliseconds, event_at(begin), event_at(end)), "event"); });
}

const char* ringreduce_cuda_begin_capture(void* stream) {
  return failure_of([&] {
    check(cudaStreamBeginCapture(stream_at(stream), cudaStreamCaptureModeGlobal), "beginning of capture");
  });
}

const char* ringreduce_cuda_end_capture(void** graph, void* stream) {
  return failure_of([&] { instantiate(graph, stream_at(stream)); });
}

const char* ringreduce_cuda_launch_graph(void* graph, void* stream) {
  return failure_of(
      [&] { check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_at(stream)), "graph"); });
}

const char* ringreduce_cuda_destroy_graph(void* graph) {
  return failure_of([&] { check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "graph"); });
}
