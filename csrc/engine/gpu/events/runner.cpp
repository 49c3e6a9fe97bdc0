#include "engine/gpu/events/runner.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/gpu/kernel_library.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Where the blocks of an array begin, and their lengths, in bytes.
struct Blocks {
  std::size_t element, count;
  const Extents* extents;

  std::size_t begin(int rank) const {
    return element * (extents ? extents->offset[rank] : count * static_cast<std::size_t>(rank));
  }
  std::size_t bytes(int rank) const { return element * (extents ? extents->count[rank] : count); }
};

// Events that other ranks of this process may ask for, by number.
std::mutex known_mutex;
auto& known = *new std::unordered_map<std::uint64_t, std::weak_ptr<const void>>;  // never destroyed

std::uint64_t make_known(const std::shared_ptr<const void>& events) {
  static std::uint64_t last = 0;
  const std::lock_guard lock(known_mutex);
  known[++last] = events;
  return last;
}

// All at once, in rank order.
constexpr Target target{.own_way = "events", .own_way_keeps_rank_order = true};

}  // namespace

EventRunner::EventRunner(int rank, int world, int device, const std::vector<int>& devices_of_peers)
    : Runner(rank, world, device),
      events_(new Events{new_event(cuda_, device), new_event(cuda_, device)}),
      number_(make_known(events_)),
      event_(new_event(cuda_, device)),
      devices_of_peers_(devices_of_peers) {
  CudaLibrary::check(KernelLibrary::get().load());
}

std::shared_ptr<const EventRunner::Events> EventRunner::events_of(std::uint64_t number) {
  const std::lock_guard lock(known_mutex);
  const auto found = known.find(number);
  return found == known.end() ? nullptr : std::static_pointer_cast<const Events>(found->second.lock());
}

EventRunner::~EventRunner() {
  {
    const std::lock_guard lock(known_mutex);
    known.erase(number_);
  }
  try {
    while (!is_last_over()) std::this_thread::yield();
  } catch (const Error&) {  // a GPU that has failed does nothing any more
  }
}

const Plan& EventRunner::plan(Planner& planner, const Call& call, const Launch& launch) {
  if (call.algorithm != automatic) {
    throw InvalidArgument(
        "algorithm must be 'auto' here: kernels cannot wait for each other, because the thread blocks of all "
        "ranks do not fit on their GPU at the same time, or because their streams share its queues "
        "(CUDA_DEVICE_MAX_CONNECTIONS)");
  }
  if (launch.captured) {
    throw InvalidArgument(
        "stream is being captured, but this group's kernels do not fit on its GPU at the same time: its "
        "ranks meet on the host in every call, which a graph cannot repeat");
  }
  return planner.plan(call, target);
}

void EventRunner::launch(const Call& call, const Plan&, const Launch& launch) {
  admit(devices_of_peers_, call);
  own_ = {nullptr, static_cast<char*>(call.output), number_, {}};
  const bool coded = call.wire != Encoding::none;
  own_.input = static_cast<const char*>(coded ? encoded_input(call, launch.stream)
                                              : input_for_peers(call, launch.stream));
  const Blocks blocks = {size_of(call.dtype), call.count, call.input_extents};
  for (int rank = 0; rank < world_ && call.wire == Encoding::none; ++rank) {
    own_.blocks[rank] = blocks.begin(rank);
  }
  CudaLibrary::check(cuda_.record(events_->ready.get(), launch.stream));
  meetings_ = 0;
}

bool EventRunner::meets(const Call& call, const Launch& launch, Call& meeting) {
  if (meetings_ == 1) {
    all_events_.clear();
    for (const Arrays& one : arrays_) all_events_.push_back(events_of(one.events));
    const auto gone = std::find(all_events_.begin(), all_events_.end(), nullptr) - all_events_.begin();
    if (gone < world_) {
      throw Failure(Cause::peer_lost, static_cast<int>(gone),
                    "rank " + std::to_string(gone) + " left while a collective was running on its GPU");
    }
    for (const auto& one : all_events_) CudaLibrary::check(cuda_.wait(one->ready.get(), launch.stream));
    call.wire == Encoding::none ? combine_and_copy(call, launch.stream)
                                : combine_and_copy_coded(call, launch.stream);
    record_last(events_->done.get(), launch.stream);
  } else if (meetings_ == 2) {
    for (const auto& one : all_events_) CudaLibrary::check(cuda_.wait(one->done.get(), launch.stream));
    record_last(event_.get(), launch.stream);
    return false;
  }
  ++meetings_;
  arrays_.resize(static_cast<std::size_t>(world_));
  meeting.collective = Collective::all_gather;
  meeting.dtype = DType::uint8;
  meeting.count = sizeof own_;
  meeting.input = &own_;
  meeting.output = arrays_.data();
  return true;
}

char* EventRunner::room_to_keep(std::size_t bytes) {
  if (!kept_ || kept_->bytes() < bytes) kept_ = std::make_unique<DeviceMemory>(cuda_, device_, bytes);
  return kept_->at();
}

// A copy, if this rank's kernel writes to the input before the others have read it, or if they must read
// scaled values.
const void* EventRunner::input_for_peers(const Call& call, void* stream) {
  const bool scales = reduces(call.collective) && call.op == Op::premul_sum;
  const bool overwritten = call.collective == Collective::all_to_all && call.input == call.output;
  if (!scales && !overwritten) return call.input;
  const std::size_t bytes = bytes_of_input(call, world_, rank_);
  room_to_keep(bytes);
  const KernelLibrary& kernels = KernelLibrary::get();
  if (scales) {
    kernels.scale_span(call.dtype, kept_->at(), call.input, bytes / size_of(call.dtype), call.factor, stream);
  } else {
    kernels.copy_span(kept_->at(), call.input, bytes, stream);
  }
  return kept_->at();
}

// This rank's share of an all-reduce, or its block; all of it on a reduction's root.
void EventRunner::combine(const Call& call, void* stream) const {
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
    sources.push_back(arrays_[rank].input + source);
    if (to_all || rank == rank_) targets.push_back(arrays_[rank].output + target);
  }
  if (count == 0) return;
  // Values have been scaled by now.
  const Op op = call.op == Op::premul_sum ? Op::sum : call.op;
  CudaLibrary::check(KernelLibrary::get().combine(
      static_cast<int>(call.dtype), static_cast<int>(op), targets.data(), static_cast<int>(targets.size()),
      sources.data(), world_, count, call.op == Op::avg ? 1.0 / world_ : 1, stream, 0));
}

void EventRunner::combine_and_copy(const Call& call, void* stream) const {
  const std::size_t element = size_of(call.dtype);
  const Blocks in = {element, call.count, call.input_extents};
  const Blocks out = {element, call.count, call.output_extents};
  const Arrays& own = arrays_[rank_];
  const auto copy = [&](char* to, const char* from, std::size_t bytes) {
    KernelLibrary::get().copy_span(to, from, bytes, stream);
  };
  const bool is_root = call.root == rank_;
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return combine(call, stream);
    case Collective::reduce:
      return is_root ? combine(call, stream) : void();
    case Collective::broadcast:
      return copy(own.output, arrays_[call.root].input, call.count * element);
    case Collective::scatter:
      return copy(own.output, arrays_[call.root].input + in.begin(rank_), in.bytes(rank_));
    case Collective::gather:
    case Collective::all_gather:
      for (int rank = 0; rank < world_ && (is_root || call.collective == Collective::all_gather); ++rank) {
        copy(own.output + out.begin(rank), arrays_[rank].input, out.bytes(rank));
      }
      return;
    default:  // all_to_all
      for (int rank = 0; rank < world_; ++rank) {
        copy(own.output + out.begin(rank), arrays_[rank].input + arrays_[rank].blocks[rank_],
             out.bytes(rank));
      }
  }
}

}  // namespace ringreduce
