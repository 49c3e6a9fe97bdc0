#include "capture.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "devices.h"
#include "gpu/device/cuda/entry_points.h"
#include "handles.h"
#include "streams.h"

namespace ringreduce::emulated {

// Numbers of cudaStreamCaptureMode: of a capture, whom it forbids what could wait for a device; of a thread,
// whose captures it heeds.
enum Mode { everybody, own_thread, nobody };

struct Capture {
  Mode mode;
  std::thread::id thread;                        // that has begun it
  std::vector<std::shared_ptr<Stream>> streams;  // the first is the one it has begun with
  Graph graph;
  bool is_spoilt = false;
};

namespace {

thread_local int mode = everybody;

Mode check_mode(int given) {
  if (given < everybody || given > nobody) throw std::invalid_argument("capture: there is no such mode");
  return static_cast<Mode>(given);
}

// Never destroyed: streams' threads may outlive main.
struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> under_way;
};
Captures& captures() {
  static auto* const made = new Captures;
  return *made;
}

Handles<Graph>& graphs() {
  static auto* const made = new Handles<Graph>("graph");
  return *made;
}

// With the lock held.
std::shared_ptr<Capture> find(const Stream& stream) {
  for (const auto& capture : captures().under_way) {
    for (const auto& one : capture->streams) {
      if (one.get() == &stream) return capture;
    }
  }
  return nullptr;
}

void refuse_legacy(const Stream& stream) {
  if (stream.kind() != Stream::Kind::legacy) return;
  throw std::invalid_argument("the legacy default stream cannot be captured");
}

void begin(void* handle, Mode of_capture) {
  const auto stream = stream_at(handle);
  refuse_legacy(*stream);
  const std::lock_guard lock(captures().mutex);
  if (find(*stream)) throw std::runtime_error("the stream is being captured already");
  captures().under_way.push_back(
      std::make_shared<Capture>(Capture{of_capture, std::this_thread::get_id(), {stream}, {}}));
}

std::shared_ptr<Graph> end(const Stream& stream) {
  const std::lock_guard lock(captures().mutex);
  const auto capture = find(stream);
  if (!capture) throw std::runtime_error("end of capture: the stream is not being captured");
  if (capture->streams.front().get() != &stream) {
    throw std::runtime_error("end of capture: it has begun with another stream");
  }
  if (capture->thread != std::this_thread::get_id()) {
    throw std::runtime_error("end of capture: another thread has begun it");
  }
  std::erase(captures().under_way, capture);
  if (capture->is_spoilt) throw std::runtime_error("end of capture: a forbidden call has spoilt it");
  return std::make_shared<Graph>(std::move(capture->graph));
}

}  // namespace

std::shared_ptr<Capture> capture_of(const Stream& stream) {
  const std::lock_guard lock(captures().mutex);
  return find(stream);
}

bool take_for_capture(const Stream& stream, const Work& work) {
  const std::lock_guard lock(captures().mutex);
  const auto capture = find(stream);
  if (capture) capture->graph.work.push_back(work);
  return capture != nullptr;
}

void join_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(captures().mutex);
  const auto has = find(*stream);
  if (has == capture) return;
  refuse_legacy(*stream);
  if (has) throw std::runtime_error("event: it belongs to another capture than the stream");
  const auto& under_way = captures().under_way;
  if (std::find(under_way.begin(), under_way.end(), capture) == under_way.end()) {
    throw std::runtime_error("event: it was recorded in a capture, which has ended");
  }
  capture->streams.push_back(stream);
}

void refuse_during_capture(const char* what) {
  const std::lock_guard lock(captures().mutex);
  bool is_forbidden = false;
  for (const auto& capture : captures().under_way) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool forbids = is_own ? capture->mode != nobody : capture->mode == everybody && mode == everybody;
    if (!forbids || mode == nobody) continue;
    capture->is_spoilt = is_forbidden = true;
  }
  if (is_forbidden) {
    throw std::runtime_error(std::string(what) + ": not while a stream is being captured (error 900)");
  }
}

void refuse_beside_capture(int device) {
  const std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().under_way) {
    for (const auto& stream : capture->streams) {
      if (stream->kind() != Stream::Kind::blocking || stream->device() != device) continue;
      capture->is_spoilt = true;
      throw std::runtime_error(
          "the legacy default stream would wait for a blocking stream that is being captured (error 906)");
    }
  }
}

}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;

const char* ringreduce_cuda_is_captured(int* is_captured, void* stream) {
  return in_context([&] { *is_captured = capture_of(*stream_at(stream)) ? 1 : 0; });
}

const char* ringreduce_cuda_hold_in_graph(void* stream, void* object, void (*drop)(void*)) {
  return in_context([&] {
    const auto capture = capture_of(*stream_at(stream));
    if (!capture) throw std::runtime_error("graph: the stream is not being captured");
    const std::lock_guard lock(captures().mutex);
    capture->graph.held.emplace_back(object, drop);
  });
}

const char* ringreduce_cuda_exchange_capture_mode(int* given) {
  return in_context([&] { *given = std::exchange(mode, check_mode(*given)); });
}

const char* ringreduce_cuda_begin_capture(void* stream, int mode) {
  return in_context([&] { begin(stream, check_mode(mode)); });
}

const char* ringreduce_cuda_end_capture(void** graph, void* stream) {
  return in_context([&] { *graph = graphs().add(end(*stream_at(stream))); });
}

const char* ringreduce_cuda_launch_graph(void* graph, void* stream) {
  return in_context([&] {
    stream_at(stream)->put([graph = graphs().at(graph)] {
      for (const Work& work : graph->work) work();
    });
  });
}

const char* ringreduce_cuda_destroy_graph(void* graph) {
  return in_context([&] { graphs().remove(graph); });
}
