// Moments on streams. What waits for an event waits for the moment that it was recorded for last, even if it
// is recorded again meanwhile.
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "devices.h"
#include "gpu/device/cuda/entry_points.h"
#include "handles.h"
#include "memory.h"
#include "streams.h"

namespace ringreduce::emulated {
namespace {

using Time = std::chrono::steady_clock::time_point;

class Moment {
 public:
  void come() {
    const std::lock_guard lock(mutex_);
    time_ = std::chrono::steady_clock::now();
    came_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return time_.has_value(); });
  }
  std::optional<Time> time() {
    const std::lock_guard lock(mutex_);
    return time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::optional<Time> time_;
};

// Recorded in a capture, it is no moment, but orders the streams there.
struct Recorded {
  std::shared_ptr<Moment> moment;
  std::shared_ptr<Capture> capture;
};

struct Event {
  const int device;
  const bool timed;
  std::mutex mutex;
  Recorded last;

  Event(int of, bool is_timed) : device(of), timed(is_timed) {}
  Recorded recorded() {
    const std::lock_guard lock(mutex);
    return last;
  }
};

// Never destroyed: streams' threads may outlive main.
Handles<Event>& events() {
  static auto* const made = new Handles<Event>("event");
  return *made;
}

void record(void* handle, void* stream_handle) {
  const auto event = events().at(handle);
  const auto stream = stream_at(stream_handle);
  if (event->device != stream->device()) throw std::invalid_argument("event: of another device's stream");
  Recorded now = {nullptr, capture_of(*stream)};
  if (!now.capture) {
    now.moment = std::make_shared<Moment>();
    stream->put([moment = now.moment] { moment->come(); });
  }
  const std::lock_guard lock(event->mutex);
  event->last = std::move(now);
}

void wait(void* handle, void* stream_handle) {
  const Recorded what = events().at(handle)->recorded();
  const auto stream = stream_at(stream_handle);
  if (what.capture) return join_capture(stream, what.capture);
  if (!what.moment) return;  // as CUDA does
  if (capture_of(*stream))
    throw std::runtime_error("event: it was recorded before the capture of the stream");
  stream->put([moment = what.moment] { moment->wait(); });
}

Time time_of(void* handle) {
  const auto event = events().at(handle);
  if (!event->timed) throw std::invalid_argument("event: it was created without timing");
  const Recorded what = event->recorded();
  if (!what.moment) throw std::runtime_error("event: it has not been recorded");
  const auto time = what.moment->time();
  if (!time) throw std::runtime_error("event: it is still to come");
  return *time;
}

constexpr std::chrono::microseconds between_looks{50};

void check_word(const std::uint64_t* word) {
  if (!is_known(word)) throw std::invalid_argument("a word: it is in no memory that streams reach");
}

void post(std::uint64_t* word, std::uint64_t value, void* stream) {
  check_word(word);
  stream_for_launch(stream)->put([=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); });
}

void hold(const std::uint64_t* word, std::uint64_t value, void* stream) {
  check_word(word);
  stream_for_launch(stream)->put([=] {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) std::this_thread::sleep_for(between_looks);
  });
}

float milliseconds_between(void* begin, void* end) {
  const Time from = time_of(begin);
  return std::chrono::duration<float, std::milli>(time_of(end) - from).count();
}

}  // namespace
}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;

const char* ringreduce_cuda_create_event(void** event, int timed) {
  return in_context([&] { *event = events().add(std::make_shared<Event>(current_device(), timed != 0)); });
}

const char* ringreduce_cuda_destroy_event(void* event) {
  return in_context([&] { events().remove(event); });
}

const char* ringreduce_cuda_record(void* event, void* stream) {
  return in_context([&] { record(event, stream); });
}

const char* ringreduce_cuda_wait(void* event, void* stream) {
  return in_context([&] { wait(event, stream); });
}

const char* ringreduce_cuda_is_over(int* over, void* event) {
  return in_context([&] {
    const Recorded what = events().at(event)->recorded();
    refuse_during_capture("event");
    if (what.capture) throw std::runtime_error("event: it was recorded in a capture (error 907)");
    *over = !what.moment || what.moment->time() ? 1 : 0;
  });
}

const char* ringreduce_cuda_post(std::uint64_t* word, std::uint64_t value, void* stream) {
  return in_context([&] { post(word, value, stream); });
}

const char* ringreduce_cuda_hold(const std::uint64_t* word, std::uint64_t value, void* stream) {
  return in_context([&] { hold(word, value, stream); });
}

const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end) {
  return in_context([&] { *milliseconds = milliseconds_between(begin, end); });
}
