#include "streams.h"

#include <cstdint>
#include <exception>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "devices.h"
#include "gpu/device/cuda/entry_points.h"
#include "handles.h"

namespace ringreduce::emulated {
namespace {

// As cudaStreamLegacy and cudaStreamPerThread are.
constexpr std::uintptr_t legacy = 1, per_thread = 2;

// Never destroyed: streams' threads may outlive main.
Handles<Stream>& streams() {
  static auto* const made = new Handles<Stream>("stream");
  return *made;
}

struct Known {
  std::mutex mutex;
  std::mutex order;  // in which work comes into streams that wait for each other
  std::vector<std::weak_ptr<Stream>> all;
  std::map<int, std::shared_ptr<Stream>> by_default;
};
Known& known() {
  static auto* const made = new Known;
  return *made;
}

std::vector<std::shared_ptr<Stream>> streams_of(int device) {
  std::vector<std::shared_ptr<Stream>> all;
  const std::lock_guard lock(known().mutex);
  for (const auto& one : known().all) {
    if (auto stream = one.lock(); stream && stream->device() == device) all.push_back(std::move(stream));
  }
  return all;
}

std::shared_ptr<Stream> default_stream() {
  const int device = current_device();
  {
    const std::lock_guard lock(known().mutex);
    if (const auto found = known().by_default[device]) return found;
  }
  auto created = Stream::create(device, Stream::Kind::legacy);
  const std::lock_guard lock(known().mutex);
  auto& kept = known().by_default[device];
  if (kept) {
    created->close();
  } else {
    kept = std::move(created);
  }
  return kept;
}

// A thread's own default streams, by device.
struct OfThread {
  std::map<int, std::shared_ptr<Stream>> by_device;
  ~OfThread() {
    for (const auto& [device, stream] : by_device) stream->close();
  }
};

std::shared_ptr<Stream> stream_of_thread() {
  thread_local OfThread own;
  auto& stream = own.by_device[current_device()];
  if (!stream) stream = Stream::create(current_device(), Stream::Kind::blocking);
  return stream;
}

}  // namespace

std::shared_ptr<Stream> Stream::create(int device, Kind kind) {
  const std::shared_ptr<Stream> made(new Stream(device, kind));
  std::thread([made] { made->work(); }).detach();
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().all, [](const auto& one) { return one.expired(); });
  known().all.push_back(made);
  return made;
}

Work Stream::after_default_streams(Work work) const {
  std::vector<std::pair<std::shared_ptr<Stream>, std::uint64_t>> earlier;
  for (const auto& stream : streams_of(device_)) {
    const bool counts =
        kind_ == Kind::legacy ? stream->kind_ == Kind::blocking : stream->kind_ == Kind::legacy;
    if (counts) earlier.emplace_back(stream, stream->last());
  }
  return [earlier = std::move(earlier), work = std::move(work)] {
    for (const auto& [stream, number] : earlier) stream->finish(number);
    work();
  };
}

void Stream::put(Work work) {
  if (take_for_capture(*this, work)) return;
  std::unique_lock<std::mutex> in_order;
  if (kind_ != Kind::non_blocking) {
    if (kind_ == Kind::legacy) refuse_beside_capture(device_);
    in_order = std::unique_lock(known().order);
    work = after_default_streams(std::move(work));
  }
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++put_;
  changed_.notify_all();
}

void Stream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::string failure;
    try {
      next();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    next = nullptr;
    lock.lock();
    if (failure_.empty()) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

std::uint64_t Stream::last() {
  const std::lock_guard lock(mutex_);
  return put_;
}

void Stream::finish(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

void Stream::synchronize() {
  if (capture_of(*this)) throw std::runtime_error("a stream that is being captured does nothing to wait for");
  refuse_during_capture("waiting for a stream");
  if (kind_ == Kind::legacy) put([] {});  // which waits for blocking streams
  finish();
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return;
  throw std::runtime_error("waiting for the stream: " + std::exchange(failure_, {}));
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

std::shared_ptr<Stream> stream_at(void* handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == per_thread) return stream_of_thread();
  return number <= legacy ? default_stream() : streams().at(handle);
}

std::shared_ptr<Stream> stream_for_launch(void* handle) {
  auto stream = stream_at(handle);
  if (stream->device() == current_device()) return stream;
  throw std::invalid_argument("the stream is device " + std::to_string(stream->device()) +
                              "'s, the current device is " + std::to_string(current_device()));
}

void finish_device(int device) {
  for (const auto& stream : streams_of(device)) stream->finish();
}

}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;

const char* ringreduce_cuda_create_stream(void** stream) {
  return in_context(
      [&] { *stream = streams().add(Stream::create(current_device(), Stream::Kind::non_blocking)); });
}

const char* ringreduce_cuda_destroy_stream(void* stream) {
  return in_context([&] { streams().remove(stream)->close(); });
}

// For other emulated libraries: puts run(argument) into a stream, or a graph, which may run it often or
// never; drop(argument) comes when it is over.
RINGREDUCE_EXPORT const char* ringreduce_emulated_put(void* stream, void (*run)(void*), void* argument,
                                                      void (*drop)(void*)) {
  const std::shared_ptr<void> kept(argument, drop);
  return in_context([&] { stream_for_launch(stream)->put([run, kept] { run(kept.get()); }); });
}

const char* ringreduce_cuda_synchronize(void* stream) {
  return in_context([&] { stream_at(stream)->synchronize(); });
}
