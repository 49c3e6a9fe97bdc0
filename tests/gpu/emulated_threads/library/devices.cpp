#include "devices.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "reduce/cuda/failures.h"
#include "transport/device/cuda/entry_points.h"

namespace ringreduce::emulated {
namespace {

thread_local int chosen = 0;

// Never destroyed: streams' threads may outlive main.
struct Reached {
  std::mutex mutex;
  std::set<std::pair<int, int>> pairs;
};
Reached& reached() {
  static auto* const made = new Reached;
  return *made;
}

// The same in all processes, whatever machine they emulate.
void identify(char* identity, int device) {
  check_device(device);
  std::memset(identity, 0, device::identity_bytes);
  std::snprintf(identity, device::identity_bytes, "emulated %d", device);
}

}  // namespace

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const int number = std::atoi(text);
  if (number <= 0) throw std::invalid_argument(std::string(name) + " is " + text);
  return number;
}

int device_count() {
  return setting("RINGREDUCE_EMULATED_DEVICES", 2);
}

int current_device() {
  return chosen;
}

void check_device(int device) {
  if (device >= 0 && device < device_count()) return;
  throw std::invalid_argument("device " + std::to_string(device) + ": there are " +
                              std::to_string(device_count()));
}

void reach(int other) {
  check_device(other);
  const std::lock_guard lock(reached().mutex);
  reached().pairs.emplace(chosen, other);
}

bool reaches(int device, int other) {
  if (device == other) return true;
  const std::lock_guard lock(reached().mutex);
  return reached().pairs.count({device, other}) != 0;
}

}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;
using ringreduce::device::failure_of;

const char* ringreduce_cuda_count_devices(int* count) {
  return failure_of([&] { *count = device_count(); });
}

const char* ringreduce_cuda_name_device(char* name, std::size_t room) {
  return failure_of([&] { std::snprintf(name, room, "emulated device %d", current_device()); });
}

const char* ringreduce_cuda_current_device(int* device) {
  return failure_of([&] { *device = current_device(); });
}

const char* ringreduce_cuda_choose_device(int device) {
  return failure_of([&] {
    check_device(device);
    chosen = device;
  });
}

const char* ringreduce_cuda_identify_device(char* identity, int device) {
  return failure_of([&] { identify(identity, device); });
}

const char* ringreduce_cuda_reach(int other) {
  return failure_of([&] {
    if (other == current_device()) throw std::invalid_argument("a device reaches its own memory anyway");
    reach(other);
  });
}
