// The kernels of one device that combine spans: threads of a group, one after another.
#include <map>
#include <mutex>
#include <tuple>

#include "devices.h"
#include "emulated.h"
#include "functions.h"
#include "memory.h"
#include "streams.h"

namespace ringreduce::emulated {
namespace {

using namespace ringreduce::device;

constexpr Group group = {7, false};
constexpr std::size_t bytes_per_thread = 16;

void check_spans(const Spans& spans, int device) {
  for (int i = 0; i < spans.source_count; ++i) check_reach(spans.sources[i], device, "a source");
  for (int i = 0; i < spans.destination_count; ++i) {
    check_reach(spans.destinations[i], device, "a destination");
  }
}

const Spans& spans_of(const Spans& spans) {
  return spans;
}

const Spans& spans_of(const CodedSpans& coded) {
  return coded.spans;
}

// run(spans) is the kernel's; there is one for each set of numbers.
template <class Parameter, class Run>
Kernel kernel_of(std::tuple<char, int, int, int> numbers, Run run) {
  // Never destroyed: streams' threads may outlive main.
  static auto* const mutex = new std::mutex;
  static auto* const functions = new std::map<std::tuple<char, int, int, int>, Function>;
  const std::lock_guard lock(*mutex);
  Function& function = (*functions)[numbers];
  if (!function.launch) {
    function.launch = [run](const void* parameter, void* handle) {
      const auto stream = stream_for_launch(handle);
      const Parameter spans = *static_cast<const Parameter*>(parameter);
      check_spans(spans_of(spans), stream->device());
      stream->put([run, spans] { run(spans); });
    };
  }
  return {&function, 1, bytes_per_thread};
}

}  // namespace
}  // namespace ringreduce::emulated

namespace ringreduce::device {

using emulated::group;

template <Family family>
Kernel combining_kernel(DType dtype, Op op, int sources) {
  Kernel kernel;
  visit_combination<is_in<family>>(dtype, op, [&]<class Combination>(Combination) {
    visit_sources<Combination>(sources, [&](auto known) {
      kernel = emulated::kernel_of<Spans>(
          {'c', static_cast<int>(dtype), static_cast<int>(op), known},
          [=](const Spans& spans) { emulate_combine(dtype, op, known, spans, group); });
    });
  });
  return kernel;
}

template Kernel combining_kernel<Family::wide_float>(DType, Op, int);
template Kernel combining_kernel<Family::small_float>(DType, Op, int);
template Kernel combining_kernel<Family::wide_integer>(DType, Op, int);
template Kernel combining_kernel<Family::small_integer>(DType, Op, int);

Kernel copy_kernel() {
  return emulated::kernel_of<Spans>({'m', 0, 0, 0}, [](const Spans& spans) { emulate_copy(spans, group); });
}

Kernel coded_kernel(Encoding wire, DType plain) {
  Kernel kernel;
  visit_codings(wire, plain, [&](auto, auto) {
    kernel = emulated::kernel_of<CodedSpans>(
        {'w', static_cast<int>(wire), static_cast<int>(plain), 0},
        [=](const CodedSpans& spans) { emulate_coded(wire, plain, spans, group); });
  });
  return kernel;
}

}  // namespace ringreduce::device
