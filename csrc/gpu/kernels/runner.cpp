#include "gpu/kernels/runner.h"

#include <algorithm>
#include <new>
#include <thread>

#include "gpu/kernels/flatten.h"
#include "gpu/kernels/kernel_library.h"
#include "transport/interface/errors.h"

namespace ringreduce {

using device::Duty;

namespace {

constexpr std::size_t KiB = 1024;
// What a block sends in the time of another wait for its peers, measured on an H100 with 4 and 8 ranks.
constexpr std::uint64_t bytes_of_a_wait = 8 * KiB;

// In place, a prefix of the ranks' values would be written where other ranks still read.
bool is_direct(Collective collective) {
  return collective != Collective::scan && collective != Collective::exscan &&
         collective != Collective::barrier;
}

bool overlap(const Call& call, int world, int rank) {
  const auto input = reinterpret_cast<std::uintptr_t>(call.input);
  const auto output = reinterpret_cast<std::uintptr_t>(call.output);
  return input < output + bytes_of_output(call, world, rank) &&
         output < input + bytes_of_input(call, world, rank);
}

}  // namespace

KernelRunner::KernelRunner(int rank, int world, int device, int priority, std::unique_ptr<DeviceBoxes> boxes,
                           std::unique_ptr<Buffers> buffers, std::unique_ptr<CopyEngine> copy_engine)
    : Runner(rank, world, device),
      uploads_(new_stream(cuda_, device)),
      event_(new_event(cuda_, device)),
      mark_(new_event(cuda_, device)),
      boxes_(std::move(boxes)),
      buffers_(std::move(buffers)),
      copy_engine_(std::move(copy_engine)),
      programs_(cuda_, device, uploads_.get(), [this] { return std::swap(event_, mark_), mark_.get(); }),
      target_{.tuning = Tuning::kernels,
              .capacity = arena_capacity(boxes_->layout().arena_bytes),
              .blocks = std::max(boxes_->layout().arenas(), 1)},
      report_memory_(cuda_, DeviceMemory::on_host, sizeof(device::Report)),
      report_(new(report_memory_.at()) device::Report()),
      messenger_(boxes_->layout().lanes > 0
                     ? std::make_unique<KernelMessenger>(rank, world, device, priority, *boxes_, *report_)
                     : nullptr) {
  if (buffers_) buffers_->start([this] { return is_idle(); });
}

KernelRunner::~KernelRunner() {
  if (buffers_) buffers_->stop();
  try {
    while (copy_engine_ && !is_last_over()) {
      copy_engine_->give_up();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    wait_until_idle();
    boxes_->leave(uploads_.get());
  } catch (const Error&) {  // a GPU that has failed does nothing any more
  }
}

void KernelRunner::wait_until_idle() {
  const OnDevice there(cuda_, device_);
  if (last()) CudaLibrary::check(cuda_.wait(last(), uploads_.get()));
  if (messenger_) messenger_->let_wait(uploads_.get());
  CudaLibrary::check(cuda_.synchronize(uploads_.get()));
}

void KernelRunner::give_up() {
  if (buffers_) buffers_->freeze();
  if (copy_engine_) copy_engine_->give_up();
  device::give_up(*report_);
}

std::uint64_t KernelRunner::collectives_ended() const {
  std::uint64_t least = heard(report_->done[0]);
  for (int i = 1; i < boxes_->layout().blocks; ++i) least = std::min(least, heard(report_->done[i]));
  return least + (copy_engine_ ? copy_engine_->ended() : 0);
}

std::optional<Transfer> KernelRunner::waiting_message() {
  if (!messenger_ || collectives_begun() != collectives_ended()) return std::nullopt;
  return messenger_->waiting();
}

// A peer, plus 1, that has made another call.
void KernelRunner::check() {
  if (messenger_) messenger_->check();
  if (const auto peer = static_cast<int>(heard(report_->differs)) - 1; peer >= 0) throw Disagreement{peer};
  if (heard(report_->overlaps) == 0) return;
  throw Failure(Cause::mismatch, rank_,
                "rank " + std::to_string(rank_) +
                    " ran two collectives on its GPU at the same time, such as a graph's replay and another "
                    "call: put both on one stream, or make one stream wait for an event of the other");
}

// Ranks of one process reach all memory.
void KernelRunner::register_memory(void* memory, std::size_t bytes, const Exchange& exchange) {
  Buffers::Places places;
  std::fill_n(places, world_, reinterpret_cast<std::uintptr_t>(memory));
  if (buffers_) buffers_->keep(memory, bytes, exchange, places);
  if (!copy_engine_) return;
  exchange_or_fail(exchange, [&] { return admit_peers(memory, bytes), std::string(); });
  copy_engine_->add(memory, bytes, {places, static_cast<std::size_t>(world_)}, exchange);
}

void KernelRunner::deregister_memory(void* memory) {
  if (copy_engine_) copy_engine_->remove(memory);
  if (buffers_) buffers_->let_go(memory);
}

// --- planning --------------------------------------------------------------------------------------------

// One round of each block, or half a one with two phases. Words with flags take twice the bytes, but no
// meetings with fences. On an H100 that 2 to 8 ranks shared, with 8 to 32 blocks each, all shorter calls were
// faster than direct ones, but for 8 ranks of 32 blocks (20 us instead of 18 for 512 KiB).
bool KernelRunner::is_short(const device::Share& share) const {
  const device::Boxes& boxes = boxes_->layout();
  const std::uint64_t phases = share.spreads ? 2 : 1;
  return phases * share.bytes <=
         round_bytes(boxes, share, shift_of_tiles(boxes, share)) * static_cast<std::uint64_t>(boxes.arenas());
}

// Of N ranks with S bytes in each block, a rank sends (N - 1) S in one shot, and 2 (N - 1) S / N in two
// shots, which wait once more.
bool KernelRunner::is_one_shot(const device::Share& share) const {
  const auto world = static_cast<std::uint64_t>(world_);
  const auto blocks = static_cast<std::uint64_t>(boxes_->layout().arenas());
  return is_short(share) && (world - 1) * (world - 2) * share.bytes <= world * blocks * bytes_of_a_wait;
}

// Hand-tuned kernels run only if the ranks choose them by themselves and agree without communicating, from
// where all of them are and what is called.
Duty KernelRunner::duty_for(const Call& call, bool is_forced) const {
  const bool chosen = call.algorithm == automatic && !is_forced;
  if (!chosen || call.input_extents || call.factor || call.wire != Encoding::none) {
    return Duty::interpret;
  }
  if (!is_direct(call.collective)) return Duty::interpret;
  if (is_short(flagged_share(call))) return Duty::flagged;
  // Between processes, with the program as a fallback in the kernel.
  return boxes_->one_process() || buffers_ ? Duty::direct : Duty::interpret;
}

// A hand-tuned kernel has an algorithm's name, too.
const Plan& KernelRunner::plan(Planner& planner, const Call& call, const Launch& launch) {
  boxes_->claim(launch.stream);
  const bool is_forced = planner.is_forced(call.collective);
  // A graph would repeat the numbers that streams tell each other.
  const bool is_free = call.algorithm == automatic && !is_forced && !launch.captured;
  const Plan* const copies = copy_engine_ && is_free ? copy_engine_->plan(planner, call) : nullptr;
  is_by_copy_engine_ = copies;
  if (copies) return *copies;
  Call here = call;
  duty_ = duty_for(call, is_forced);
  // The fallback combines in the same order, and copies as the tables say.
  if (duty_ != Duty::interpret && (boxes_->one_process() || reduces(call.collective))) {
    const bool one_shot = duty_ == Duty::flagged && !flagged_share(call).spreads;
    const bool reduces_all = call.collective == Collective::all_reduce;
    const char* name = !reduces_all ? "direct" : one_shot ? "one_shot" : "two_shot";
    here.algorithm = static_cast<int>(find_algorithm(call.collective, name) - catalogue().data());
  }
  const Plan& plan = planner.plan(here, target_);
  place_ = {};
  const bool may_fall_back = duty_ == Duty::direct && (buffers_ || call.collective == Collective::all_to_all);
  if (duty_ == Duty::interpret || may_fall_back) {
    place_ = programs_.find(call, plan, boxes_->layout(), launch);
  }
  return plan;
}

// --- launching -------------------------------------------------------------------------------------------

device::Share KernelRunner::share_of(const Call& call) const {
  const std::uint64_t bytes = call.count * size_of(call.dtype);
  const auto rank = static_cast<std::uint64_t>(rank_), world = static_cast<std::uint64_t>(world_);
  const device::RankRange all{0, world_}, own{rank_, rank_ + 1}, root{call.root, call.root + 1};
  const std::uint64_t at = rank * bytes;
  switch (call.collective) {
    case Collective::reduce_scatter:
      return {at, at, bytes, all, own, true, false, false, false};
    case Collective::all_gather:
      return {at, at, bytes, own, all, false, true, true, false};
    case Collective::gather:
      return {at, at, bytes, own, root, false, true, true, false};
    case Collective::scatter:
      return {at, at, bytes, root, own, true, false, true, false};
    case Collective::all_to_all:
      return {at, 0, bytes, all, own, true, false, true, true};
    default:
      break;
  }
  // In packs, so that shares begin at accesses of 16 bytes.
  constexpr std::uint64_t pack = device::pack_bytes;
  const std::uint64_t packs = (bytes + pack - 1) / pack;
  const std::uint64_t begin = std::min(packs * rank / world * pack, bytes);
  const std::uint64_t end = std::min(packs * (rank + 1) / world * pack, bytes);
  const bool broadcasts = call.collective == Collective::broadcast;
  return {begin,
          begin,
          end - begin,
          broadcasts ? root : all,
          call.collective == Collective::reduce ? root : all,
          true,
          true,
          broadcasts,
          false};
}

device::Share KernelRunner::flagged_share(const Call& call) const {
  const std::uint64_t bytes = call.count * size_of(call.dtype);
  const std::uint64_t at = static_cast<std::uint64_t>(rank_) * bytes;
  const device::RankRange all{0, world_}, root{call.root, call.root + 1};
  device::Share share{};
  share.bytes = bytes;
  share.from = share.to = all;
  share.copies = !reduces(call.collective);
  switch (call.collective) {
    case Collective::all_reduce:
      share.spreads = !is_one_shot(share);
      break;
    case Collective::reduce_scatter:
      share.source_step = bytes;
      share.target = at;
      break;
    case Collective::all_gather:
      share.source = at;
      share.target_step = bytes;
      break;
    case Collective::gather:
      share.to = root;
      share.source = at;
      share.target_step = bytes;
      break;
    case Collective::scatter:
      share.from = root;
      share.source_step = bytes;
      share.target = at;
      break;
    case Collective::all_to_all:
      share.source_step = share.target_step = bytes;
      break;
    case Collective::broadcast:
      share.from = root;
      break;
    default:
      share.to = root;
      break;
  }
  return share;
}

device::Errand KernelRunner::errand_for(const Call& call, const Plan& plan, std::uint64_t contract) const {
  const bool reducing = reduces(call.collective);
  device::Errand errand{};
  errand.rank = rank_;
  errand.dtype = static_cast<std::int32_t>(call.wire != Encoding::none ? DType::float32
                                           : reducing                  ? call.dtype
                                                                       : DType::uint8);
  errand.wire = static_cast<std::int32_t>(call.wire);
  errand.arrays = static_cast<std::int32_t>(plan.geometry.narrow);
  errand.op = static_cast<std::int32_t>(call.factor ? scaling : reducing ? call.op : Op::sum);
  errand.duty = duty_;
  errand.contract = contract;
  errand.input = reinterpret_cast<const char*>(input_of_all(call, rank_));
  errand.output = reinterpret_cast<char*>(output_of_all(call, rank_));
  errand.program = reinterpret_cast<const device::FlatProgram*>(place_.program);
  errand.temp = place_.temp;
  const bool averages = reducing && call.op == Op::avg;
  errand.last = averages ? Scale{plan.divide, world_} : Scale{1, 1};
  errand.scales = call.factor.has_value();
  errand.own = {call.factor.value_or(1), 1};
  errand.boxes = boxes_->layout();
  for (int rank = 0; rank < world_; ++rank) errand.memories[rank] = boxes_->memory(rank);
  errand.report = report_;
  return errand;
}

// Gives other devices access to what may be an array; null: the root's only.
void KernelRunner::admit_peers(const void* memory, std::size_t bytes) const {
  const std::vector<int>& devices = boxes_->devices_of_peers();
  if (devices.empty() || !memory || bytes == 0) return;
  CudaLibrary::check(cuda_.admit(devices.data(), static_cast<int>(devices.size()), memory, bytes));
}

// Where all ranks reach the arrays that others read or write; 0 if some rank does not, or must not.
void KernelRunner::place_arrays(const Call& call, bool captured, device::Errand& errand) const {
  const device::Share& share = errand.share;
  const auto place = [&](const void* memory, const void* base, std::size_t bytes, bool for_others,
                         Buffers::Places& places) {
    if (for_others && buffers_) {
      buffers_->find(memory, bytes, captured, places);
    } else {
      std::fill_n(places, world_, reinterpret_cast<std::uintptr_t>(base));
    }
  };
  // What a rank exchanges in place, it would overwrite before others have read it.
  if (!share.exchanges || !overlap(call, world_, rank_)) {
    place(call.input, errand.input, bytes_of_input(call, world_, rank_),
          share.from_others && share.from.contains(rank_), errand.inputs);
  }
  place(call.output, errand.output, bytes_of_output(call, world_, rank_),
        share.to_others && share.to.contains(rank_), errand.outputs);
}

void KernelRunner::launch(const Call& call, const Plan& plan, const Launch& launch) {
  if (is_by_copy_engine_) {
    copy_engine_->launch(call, launch.contract, launch.stream);
    return record_last(event_.get(), launch.stream);
  }
  device::Errand errand = errand_for(call, plan, launch.contract);
  std::unique_lock<std::mutex> held;
  if (duty_ == Duty::direct) {
    errand.share = share_of(call);
    admit_peers(call.input, bytes_of_input(call, world_, rank_));
    if (call.output != call.input) admit_peers(call.output, bytes_of_output(call, world_, rank_));
    if (buffers_) held = buffers_->hold();
    place_arrays(call, launch.captured, errand);
  } else if (duty_ == Duty::flagged) {
    errand.share = flagged_share(call);
  }
  CudaLibrary::check(KernelLibrary::get().run(&errand, launch.stream));
  if (!launch.captured) record_last(event_.get(), launch.stream);
}

}  // namespace ringreduce
