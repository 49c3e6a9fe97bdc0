#include "devices.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "gpu/device/cuda/entry_points.h"

namespace ringreduce::emulated {
namespace {

constexpr int none = -1;
thread_local int context = none;  // whose, of the calling thread

// By device: whether the process has made a context there, which takes memory. A thread knows it by address.
constexpr int most_devices = 64;
std::array<std::atomic<bool>, most_devices> has_context;

void choose(int device) {
  check_device(device);
  has_context.at(static_cast<std::size_t>(device)) = true;
  context = device;
}

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
  return context == none ? 0 : context;
}

void need_context() {
  if (context == none) choose(0);
}

void check_device(int device) {
  if (device >= 0 && device < device_count()) return;
  throw std::invalid_argument("device " + std::to_string(device) + ": there are " +
                              std::to_string(device_count()));
}

void reach(int other) {
  check_device(other);
  const std::lock_guard lock(reached().mutex);
  reached().pairs.emplace(current_device(), other);
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
  return failure_of([&] { choose(device); });
}

const char* ringreduce_cuda_enter_device(void** before, int device) {
  return failure_of([&] {
    *before = context == none ? nullptr : &has_context.at(static_cast<std::size_t>(context));
    choose(device);
  });
}

const char* ringreduce_cuda_leave_device(void* before) {
  return failure_of([&] {
    context = before ? static_cast<int>(static_cast<std::atomic<bool>*>(before) - has_context.data()) : none;
  });
}

// For tests.
RINGREDUCE_EXPORT int ringreduce_emulated_has_context(int device) {
  return has_context.at(static_cast<std::size_t>(device)) ? 1 : 0;
}

const char* ringreduce_cuda_identify_device(char* identity, int device) {
  return failure_of([&] { identify(identity, device); });
}

const char* ringreduce_cuda_reach(int other) {
  return in_context([&] {
    if (other == current_device()) throw std::invalid_argument("a device reaches its own memory anyway");
    reach(other);
  });
}
