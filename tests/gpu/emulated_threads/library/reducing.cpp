// The kernels of one device that combine spans: threads of a group, one after another.
#include <array>
#include <atomic>

#include "capture.h"
#include "devices.h"
#include "emulated.h"
#include "memory.h"
#include "reduce/cuda/entry_points.h"
#include "residency.h"
#include "streams.h"

namespace ringreduce::emulated {
namespace {

using namespace ringreduce::device;

constexpr Group group = {7, false};

// What has no kernel is refused at once: of spans of nothing, too.
// By device. Kernels that were not loaded before are loaded by the first launch.
std::array<std::atomic<bool>, 64> loaded;

void load_kernels() {
  std::atomic<bool>& here = loaded.at(static_cast<std::size_t>(current_device()));
  if (here) return;
  refuse_during_capture("loading kernels");
  refuse_beside_kernels(current_device(), "loading kernels");
  here = true;
}

void check_spans(const Spans& spans, std::size_t bytes) {
  const int device = current_device();
  for (int i = 0; i < spans.source_count && bytes > 0; ++i) check_reach(spans.sources[i], device, "a source");
  for (int i = 0; i < spans.destination_count && bytes > 0; ++i) {
    check_reach(spans.destinations[i], device, "a destination");
  }
}

template <class Launch>
void launch(Launch launch, void* stream) {
  launch(true);
  if (residency_of(current_device()).is_busy()) load_kernels();
  stream_for_launch(stream)->put([launch] { launch(false); });
}

}  // namespace
}  // namespace ringreduce::emulated

using namespace ringreduce;
using namespace ringreduce::device;
using ringreduce::emulated::check_spans;
using ringreduce::emulated::group;
using ringreduce::emulated::in_context;
using ringreduce::emulated::launch;

const char* ringreduce_cuda_load() {
  return in_context([] { ringreduce::emulated::load_kernels(); });
}

const char* ringreduce_cuda_combine(int dtype, int op, void* const* destinations, int destination_count,
                                    const void* const* sources, int source_count, std::size_t count,
                                    double scale, void* stream, int /*blocks*/) {
  return in_context([&] {
    const Spans spans = make_spans(destinations, destination_count, sources, source_count, count, scale);
    const auto run = [=](bool only_tries) {
      Spans tried = spans;
      if (only_tries) tried.count = 0;
      emulate_combine(static_cast<DType>(dtype), static_cast<Op>(op), spans.source_count, tried, group);
    };
    check_spans(spans, count);
    launch(run, stream);
  });
}

const char* ringreduce_cuda_copy(void* const* destinations, int destination_count, const void* source,
                                 std::size_t bytes, void* stream, int /*blocks*/) {
  return in_context([&] {
    const Spans spans = make_spans(destinations, destination_count, &source, 1, bytes, 1);
    const auto run = [=](bool only_tries) {
      if (!only_tries) emulate_copy(spans, group);
    };
    check_spans(spans, bytes);
    launch(run, stream);
  });
}

const char* ringreduce_cuda_combine_coded(int wire, int plain, int op, std::uint32_t encoded_sources,
                                          std::uint32_t encoded_destinations, int quantize,
                                          void* const* destinations, int destination_count,
                                          const void* const* sources, int source_count, std::size_t count,
                                          double scale, void* stream, int /*blocks*/) {
  return in_context([&] {
    const CodedSpans coded = {
        make_spans(destinations, destination_count, sources, source_count, count, scale), static_cast<Op>(op),
        encoded_sources, encoded_destinations, quantize != 0};
    const auto run = [=](bool only_tries) {
      CodedSpans tried = coded;
      if (only_tries) tried.spans.count = 0;
      emulate_coded(static_cast<Encoding>(wire), static_cast<DType>(plain), tried, group);
    };
    launch(run, stream);
  });
}
