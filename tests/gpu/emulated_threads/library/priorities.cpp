// The emulated GPU runs all streams side by side. It only keeps which priorities they were made with.
#include <map>
#include <mutex>

#include "gpu/device/cuda/entry_points.h"

namespace {

std::mutex mutex;
std::map<void*, int> priorities;

}  // namespace

const char* ringreduce_cuda_create_stream_with_priority(void** stream, int priority) {
  const char* const failure = ringreduce_cuda_create_stream(stream);
  const std::lock_guard lock(mutex);
  if (!failure) priorities[*stream] = priority;
  return failure;
}

RINGREDUCE_EXPORT int ringreduce_emulated_priority(void* stream) {
  const std::lock_guard lock(mutex);
  return priorities[stream];
}
