// Ranks' kernels: each block is one of the CPU's threads, and all of them run at the same time.
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "devices.h"
#include "functions.h"
#include "gpu/kernels/cuda/direct.h"
#include "gpu/kernels/cuda/flagged.h"
#include "gpu/kernels/cuda/interpreter.h"
#include "gpu/kernels/cuda/messages.h"
#include "gpu/kernels/cuda/rank_kernels.h"
#include "gpu/reduce/entry_points.h"
#include "memory.h"
#include "passes.h"
#include "residency.h"
#include "streams.h"

namespace ringreduce::emulated {
namespace {

using namespace ringreduce::device;

constexpr std::size_t threads_of_block = 3;

using Run = void (*)(Block&, const Errand&, const Pass&);

template <class Kernel, class Shared>
void run_block(Block& block, const Errand& errand, const Pass& pass) {
  const auto shared = std::make_unique_for_overwrite<Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(Shared));  // nobody has cleared a card's, either
  Kernel(block, *shared, errand, pass).run();
}

// What the calling thread runs.
thread_local const Pass* pass_beneath;
thread_local int device_of_block;

void check_span(const void* span, std::size_t bytes) {
  check_reach(span, device_of_block, "a peer's array");
  check_reach(static_cast<const char*>(span) + bytes - 1, device_of_block, "the end of a peer's array");
}

// Of ranks that reach each other's arrays.
void run_checked(const Spans& spans, std::size_t thread, std::size_t threads) {
  const std::size_t bytes = spans.count * pass_beneath->element_bytes;
  for (int i = 0; i < spans.source_count && thread == 0 && bytes > 0; ++i)
    check_span(spans.sources[i], bytes);
  for (int i = 0; i < spans.destination_count && thread == 0 && bytes > 0; ++i) {
    check_span(spans.destinations[i], bytes);
  }
  pass_beneath->run(spans, thread, threads);
}

void run_direct(Block& block, const Errand& errand, const Pass& pass) {
  const auto shared = std::make_unique_for_overwrite<DirectShared>();
  std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(DirectShared));
  if (!Direct(block, *shared, errand, pass).run()) {
    run_block<Interpreter, InterpreterShared>(block, errand, pass);
  }
}

// By block, of the kernel that began last.
struct Orders {
  std::mutex mutex;
  std::shared_ptr<std::vector<std::string>> of_last;
};
Orders& orders() {
  static auto* const made = new Orders;
  return *made;
}

void run_blocks(int count, Report& report, int device, const std::function<void(Block&)>& run) {
  Residency& residency = residency_of(device);
  const auto order = std::make_shared<std::vector<std::string>>(count);
  {
    const std::lock_guard lock(orders().mutex);
    orders().of_last = order;
  }
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> blocks;
  const auto run_one = [&](int index) {
    try {
      Block block(index, count, threads_of_block);
      device_of_block = device;
      run(block);
      (*order)[static_cast<std::size_t>(index)] = order_of_words;
    } catch (const std::exception& error) {
      // A fault ends the kernel, and who waits for it is not to wait for ever.
      give_up(report);
      const std::lock_guard lock(mutex);
      failure = error.what();
    }
    residency.leave();
  };
  {
    const Residency::Turn turn(residency, count);
    for (int index = 0; index < count; ++index) {
      residency.enter();
      blocks.emplace_back(run_one, index);
    }
  }
  for (std::thread& block : blocks) block.join();
  if (!failure.empty()) throw std::runtime_error(failure);
}

void run_kernel(Run run, const Errand& errand, const Pass& pass, int device) {
  const bool checks = errand.duty == Duty::direct;
  const Pass& used = checks ? Pass{run_checked, pass.element_bytes, nullptr, nullptr} : pass;
  run_blocks(errand.boxes.blocks, *errand.report, device, [&](Block& block) {
    pass_beneath = &pass;
    run(block, errand, used);
  });
}

// What all kernels of a rank reach.
template <class Parameter>
void check_errand(const Parameter& errand, int device) {
  const Boxes& boxes = errand.boxes;
  if (boxes.world < 1 || boxes.world > most_ranks || errand.rank < 0 || errand.rank >= boxes.world) {
    throw std::invalid_argument("rank " + std::to_string(errand.rank) + " of " + std::to_string(boxes.world));
  }
  if (boxes.blocks < 1) throw std::invalid_argument("a launch of no blocks");
  check_reach(errand.report, device, "the report");
  for (int rank = 0; rank < boxes.world; ++rank) {
    check_reach(errand.memories[rank], device, "the boxes of rank " + std::to_string(rank));
    check_reach(errand.memories[rank] + boxes.bytes() - 1, device, "their end");
  }
}

// What is read and written beside what peers reach.
void check_share(const Errand& errand, int device, std::uint64_t source, std::uint64_t target) {
  if (errand.share.bytes == 0) return;
  if (errand.share.from.contains(errand.rank)) {
    check_reach(errand.input + source, device, "the input");
    const std::uint64_t others =
        errand.share.source_step * static_cast<std::uint64_t>(errand.boxes.world - 1);
    check_reach(errand.input + source + others + errand.share.bytes - 1, device, "the input's end");
  }
  if (errand.share.to.contains(errand.rank)) {
    check_reach(errand.output + target, device, "the output");
    const std::uint64_t others =
        errand.share.target_step * static_cast<std::uint64_t>(errand.boxes.world - 1);
    check_reach(errand.output + target + others + errand.share.bytes - 1, device, "the output's end");
  }
}

void launch(Run run, const Errand& errand, void* handle) {
  const auto stream = stream_for_launch(handle);
  const int device = stream->device();
  check_errand(errand, device);
  const Pass pass = errand.wire != 0
                        ? pass_for(static_cast<Encoding>(errand.wire), static_cast<Encoding>(errand.arrays))
                        : pass_for(static_cast<DType>(errand.dtype), static_cast<Op>(errand.op));
  stream->put([=] { run_kernel(run, errand, pass, device); });
}

void launch_coded(const void* parameter, void* stream) {
  const Errand& errand = *static_cast<const Errand*>(parameter);
  check_reach(errand.program, current_device(), "the program");
  launch(run_block<CodedInterpreter, InterpreterShared>, errand, stream);
}

void launch_errand(const void* parameter, void* stream) {
  const Errand& errand = *static_cast<const Errand*>(parameter);
  switch (errand.duty) {
    case Duty::interpret:
      check_reach(errand.program, current_device(), "the program");
      return launch(run_block<Interpreter, InterpreterShared>, errand, stream);
    case Duty::flagged:
      check_share(errand, current_device(), errand.share.source, errand.share.target);
      return launch(run_block<Flagged, FlaggedShared>, errand, stream);
    case Duty::direct:
      check_share(errand, current_device(), errand.share.source, errand.share.target);
      return launch(run_direct, errand, stream);
  }
}

void launch_messages(const void* parameter, void* handle) {
  const Messages& errand = *static_cast<const Messages*>(parameter);
  const auto stream = stream_for_launch(handle);
  const int device = stream->device();
  check_errand(errand, device);
  for (int i = 0; i < errand.begins[errand.pairs]; ++i) {
    const Message& message = errand.messages[i];
    if (message.bytes == 0) continue;
    check_reach(message.data, device, "a message");
    check_reach(message.data + message.bytes - 1, device, "a message's end");
  }
  stream->put([=] {
    run_blocks(errand.pairs * errand.boxes.lanes, *errand.report, device, [&](Block& block) {
      Spans spans;
      std::memset(static_cast<void*>(&spans), 0xA5, sizeof spans);
      Carrier(block, spans, errand).run();
    });
  });
}

}  // namespace
}  // namespace ringreduce::emulated

namespace ringreduce::device {

// RINGREDUCE_EMULATED_STACK: what a thread needs, but for that of the kernel of the wide floats.
template <Family family>
const void* rank_kernel_of() {
  // Never destroyed: streams' threads may outlive main.
  static const auto* const made = new emulated::Function{
      emulated::launch_errand,
      static_cast<std::size_t>(
          family == Family::wide_float ? 512 : emulated::setting("RINGREDUCE_EMULATED_STACK", 512)),
      true};
  return made;
}

const void* coded_rank_kernel() {
  static const auto* const made = new emulated::Function{emulated::launch_coded, 512, true};
  return made;
}

const void* message_kernel() {
  static const auto* const made = new emulated::Function{emulated::launch_messages, 512, true};
  return made;
}

template const void* rank_kernel_of<Family::wide_float>();
template const void* rank_kernel_of<Family::small_float>();
template const void* rank_kernel_of<Family::wide_integer>();
template const void* rank_kernel_of<Family::small_integer>();

}  // namespace ringreduce::device

// In which a block of the kernel that began last has told others, and had fences: see order_of_words. Once
// the kernel has ended.
RINGREDUCE_EXPORT void ringreduce_emulated_order(int block, char* text, std::size_t room) {
  using ringreduce::emulated::orders;
  const std::lock_guard lock(orders().mutex);
  std::snprintf(text, room, "%s", orders().of_last->at(static_cast<std::size_t>(block)).c_str());
}
