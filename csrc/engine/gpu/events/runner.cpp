#include "engine/gpu/events/runner.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/gpu/kernel_library.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Where the blocks of an array begin, in bytes, and how long they are.
struct Blocks {
  std::size_t element, count;
  const Extents* extents;

  std::size_t begin(int rank) const {
    return element * (extents ? extents->offset[rank] : count * static_cast<std::size_t>(rank));
  }
  std::size_t bytes(int rank) const { return element * (extents ? extents->count[rank] : count); }
};

}  // namespace

EventCalls::EventCalls(const CudaLibrary& cuda, int device, int rank, int world)
    : cuda_(cuda),
      device_(device),
      rank_(rank),
      world_(world),
      events_(new Events{new_event(cuda, device), new_event(cuda, device)}) {}

EventCalls::~EventCalls() {
  int over = launched_ ? 0 : 1;
  while (over == 0 && !cuda_.is_over(&over, events_->done.get())) std::this_thread::yield();
}

void EventCalls::run(const Call& call, const Plan& plan, void* stream, const Exchange& exchange) {
  const OnDevice there(cuda_, device_);
  int captured = 0;
  CudaLibrary::check(cuda_.is_captured(&captured, stream));
  if (captured) {
    throw InvalidArgument(
        "stream is captured, and this group's kernels do not fit on its GPU at the same time: its ranks meet "
        "on the host in every call, which no graph can repeat");
  }
  Arrays own = {
      static_cast<const char*>(input_for_peers(call, stream)), static_cast<char*>(call.output), &events_, {}};
  const Blocks blocks = {size_of(call.dtype), call.count, call.input_extents};
  for (int rank = 0; rank < world_; ++rank) own.blocks[rank] = blocks.begin(rank);
  CudaLibrary::check(cuda_.record(events_->ready.get(), stream));
  const std::vector<Arrays> arrays = meet(own, exchange);
  std::vector<std::shared_ptr<const Events>> events;
  for (const Arrays& one : arrays) events.push_back(*one.events);
  for (const auto& one : events) CudaLibrary::check(cuda_.wait(one->ready.get(), stream));
  launch(call, plan, arrays, stream);
  CudaLibrary::check(cuda_.record(events_->done.get(), stream));
  launched_ = true;
  meet(own, exchange);
  for (const auto& one : events) CudaLibrary::check(cuda_.wait(one->done.get(), stream));
}

std::vector<EventCalls::Arrays> EventCalls::meet(const Arrays& own, const Exchange& exchange) const {
  std::vector<Arrays> arrays;
  for (const std::string& blob : exchange({reinterpret_cast<const char*>(&own), sizeof own})) {
    std::memcpy(&arrays.emplace_back(), blob.data(), std::min(blob.size(), sizeof own));
  }
  return arrays;
}

// A copy of it, where this rank's kernel writes to it before the others have read it, or where they are to
// read something else.
const void* EventCalls::input_for_peers(const Call& call, void* stream) {
  const bool scales = reduces(call.collective) && call.op == Op::premul_sum;
  const bool overwritten = call.collective == Collective::all_to_all && call.input == call.output;
  if (!scales && !overwritten) return call.input;
  const std::size_t bytes = bytes_of_input(call, world_, rank_);
  if (!kept_ || kept_->bytes() < bytes) kept_ = std::make_unique<DeviceMemory>(cuda_, device_, bytes);
  void* const to = kept_->at();
  if (scales) {
    CudaLibrary::check(KernelLibrary::get().combine(static_cast<int>(call.dtype),
                                                    static_cast<int>(Op::premul_sum), &to, 1, &call.input, 1,
                                                    bytes / size_of(call.dtype), call.factor, stream, 0));
  } else {
    copy(kept_->at(), static_cast<const char*>(call.input), bytes, stream);
  }
  return to;
}

void EventCalls::copy(char* to, const char* from, std::size_t bytes, void* stream) const {
  void* const target = to;
  if (bytes > 0 && to != from)
    CudaLibrary::check(KernelLibrary::get().copy(&target, 1, from, bytes, stream, 0));
}

// This rank's share of an all-reduce, or its block; a reduction's root has all of it.
void EventCalls::combine(const Call& call, const Plan& plan, const std::vector<Arrays>& arrays,
                         void* stream) const {
  const std::size_t element = size_of(call.dtype);
  const Blocks blocks = {element, call.count, call.input_extents};
  std::size_t source = 0, target = 0, count = call.count;
  const bool to_all = call.collective == Collective::all_reduce;
  if (to_all) {
    const std::size_t each = (call.count + static_cast<std::size_t>(world_) - 1) / world_;
    const std::size_t begin = std::min(each * static_cast<std::size_t>(rank_), call.count);
    source = target = begin * element;
    count = std::min(each, call.count - begin);
  } else if (call.collective == Collective::reduce_scatter) {
    source = blocks.begin(rank_);
    count = blocks.bytes(rank_) / element;
  }
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (int rank = 0; rank < world_; ++rank) {
    sources.push_back(arrays[rank].input + source);
    if (to_all || rank == rank_) targets.push_back(arrays[rank].output + target);
  }
  if (count == 0) return;
  // Values are scaled by now.
  const Op op = call.op == Op::premul_sum ? Op::sum : call.op;
  CudaLibrary::check(KernelLibrary::get().combine(static_cast<int>(call.dtype), static_cast<int>(op),
                                                  targets.data(), static_cast<int>(targets.size()),
                                                  sources.data(), world_, count, plan.divide, stream, 0));
}

void EventCalls::launch(const Call& call, const Plan& plan, const std::vector<Arrays>& arrays,
                        void* stream) const {
  const std::size_t element = size_of(call.dtype);
  const Blocks in = {element, call.count, call.input_extents};
  const Blocks out = {element, call.count, call.output_extents};
  const Arrays& own = arrays[rank_];
  const bool is_root = call.root == rank_;
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return combine(call, plan, arrays, stream);
    case Collective::reduce:
      return is_root ? combine(call, plan, arrays, stream) : void();
    case Collective::broadcast:
      return copy(own.output, arrays[call.root].input, call.count * element, stream);
    case Collective::scatter:
      return copy(own.output, arrays[call.root].input + in.begin(rank_), in.bytes(rank_), stream);
    case Collective::gather:
    case Collective::all_gather:
      for (int rank = 0; rank < world_ && (is_root || call.collective == Collective::all_gather); ++rank) {
        copy(own.output + out.begin(rank), arrays[rank].input, out.bytes(rank), stream);
      }
      return;
    default:  // all_to_all
      for (int rank = 0; rank < world_; ++rank) {
        copy(own.output + out.begin(rank), arrays[rank].input + arrays[rank].blocks[rank_], out.bytes(rank),
             stream);
      }
  }
}

}  // namespace ringreduce
