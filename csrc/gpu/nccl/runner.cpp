#include "gpu/nccl/runner.h"

#include <algorithm>
#include <new>
#include <optional>
#include <thread>

#include "gpu/kernels/kernel_library.h"
#include "gpu/nccl/native.h"
#include "gpu/nccl/walk.h"
#include "gpu/reduce/spans.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
// For a round's messages of one slice. NCCL keeps the wire busy within a message, so more slices only take
// more launches, except in chains, which pass them on. Not measured on a card yet.
constexpr std::size_t longest_slice = 16 * MiB;
constexpr std::size_t capacity = std::size_t{1} << 40;  // messages need not fit into an arena
constexpr std::size_t least_room = MiB;
constexpr std::size_t most_events = 64;
constexpr Target own_way{.own_way = "nccl"};
constexpr std::chrono::seconds patience_with_graphs{2}, patience_when_aborted{2};

}  // namespace

NcclRunner::NcclRunner(int rank, int world, int device, bool reproducible, bool messages,
                       const GpuOptions& options, const std::vector<int>& hosts, Clock::duration timeout,
                       const Exchange& exchange, Tick tick)
    : Runner(rank, world, device),
      reproducible_(reproducible),
      tick_(std::move(tick)),
      target_{hosts.empty() ? Tuning::network : Tuning::hosts_of_several, capacity} {
  const OnDevice there(cuda_, device);
  exchange_or_fail(exchange, [&] {
    NcclLibrary::get();
    CudaLibrary::check(KernelLibrary::get().load());
    report_memory_ = std::make_unique<DeviceMemory>(cuda_, DeviceMemory::on_host,
                                                    sizeof(device::Report) + sizeof(std::uint64_t));
    report_ = new (report_memory_->at()) device::Report();
    contract_ = std::make_unique<NcclContract>(cuda_, device);
    if (messages) {
      labels_ = std::make_unique<NcclLabels>(cuda_, rank, world, device);
      stream_ = new_stream(cuda_, device, options.priority);
    }
    one_ = new (report_memory_->at() + sizeof(device::Report)) std::uint64_t(1);
    return std::string();
  });
  group_ = std::make_unique<NcclGroup>(rank, world, options.min_blocks, options.max_blocks, timeout, exchange,
                                       tick_);
}

// Memory that streams may still write to is not reused.
NcclRunner::~NcclRunner() {
  give_up();
  if (comes_to_rest()) return;
  report_memory_.release();                  // NOLINT(bugprone-unused-return-value)
  contract_.release();                       // NOLINT(bugprone-unused-return-value)
  labels_.release();                         // NOLINT(bugprone-unused-return-value)
  for (auto& room : rooms_) room.release();  // NOLINT(bugprone-unused-return-value)
}

// What follows an aborted operation continues, and soon ends.
bool NcclRunner::comes_to_rest() const {
  try {
    const OnDevice there(cuda_, device_);
    const auto deadline = Clock::now() + patience_when_aborted;
    while (!is_last_over()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  } catch (const Error&) {
    return true;  // a GPU that has failed does nothing any more
  }
}

std::size_t NcclRunner::footprint() const {
  std::size_t bytes = contract_->bytes() + (labels_ ? labels_->bytes() : 0);
  for (const auto& room : rooms_) bytes += room->bytes();
  return bytes;
}

// --- planning ----------------------------------------------------------------------------------------------

const Plan& NcclRunner::plan(Planner& planner, const Call& call, const Launch&) {
  if (call.algorithm == by_nccl) {
    check_that_nccl_has(call, group_->library());
    return planner.plan(call, own_way);
  }
  check_sources(call);
  Call here = call;
  if (here.slice_bytes == 0) here.slice_bytes = longest_slice;
  return planner.plan(here, target_);
}

// A kernel rounds once for all of its sources. With more sources than it takes, partial sums are rounded,
// too.
void NcclRunner::check_sources(const Call& call) const {
  const bool rounds = size_of(call.dtype) <= 2 && takes_factor(call.dtype);
  if (!reproducible_ || !rounds || !reduces(call.collective) || world_ <= device::most_spans) return;
  throw InvalidArgument(
      std::string("dtype ") + name_of(call.dtype) +
      " cannot be reduced over NCCL on a reproducible communicator of more than " +
      std::to_string(device::most_spans) +
      " ranks: a kernel combines so many arrays at once, and the sum of more would be rounded "
      "more than once");
}

// --- launching ---------------------------------------------------------------------------------------------

void NcclRunner::launch(const Call& call, const Plan& plan, const Launch& launch) {
  const auto lock = group_->occupy();
  captured_ |= launch.captured;
  if (!launch.captured) follow_last(launch.stream);
  if (!launch.captured && world_ > 1 && NcclContract::is_due(collectives_++)) {
    contract_->pledge(*group_, launch.contract, launch.stream, tick_);
  }
  if (launch.captured) count_in_graph(&report_->begun, launch.stream);
  if (call.algorithm == by_nccl) {
    run_by_nccl(call, *group_, rank_, launch.stream, tick_);
  } else {
    NcclWalk walk(*group_, call, plan, rank_);
    walk.run(make_room(walk.room()), launch.stream, tick_);
  }
  if (launch.captured) {
    count_in_graph(&report_->done[0], launch.stream);
  } else {
    note_launched(launch.stream, nullptr);
  }
}

// Earlier memory stays: a graph may use it, and freeing it would wait for the GPU.
char* NcclRunner::make_room(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (rooms_.empty() || rooms_.back()->bytes() < bytes) {
    const std::size_t twice = rooms_.empty() ? least_room : 2 * rooms_.back()->bytes();
    rooms_.push_back(std::make_unique<DeviceMemory>(cuda_, device_, std::max(bytes, twice)));
  }
  return rooms_.back()->at();
}

// --- messages ----------------------------------------------------------------------------------------------

// NCCL copies what a rank sends to itself if it receives that in the same group.
void NcclRunner::check_own(std::span<const Transfer> transfers) const {
  std::array<std::vector<std::uint64_t>, 2> to_itself;
  for (const Transfer& one : transfers) {
    if (one.peer == rank_) to_itself[one.sends ? 1 : 0].push_back(label_of(one));
  }
  if (to_itself[0] == to_itself[1]) return;
  throw InvalidArgument(
      "rank " + std::to_string(rank_) +
      " sends to itself, which over NCCL takes a send and a recv that match, in the same batch");
}

void NcclRunner::launch(std::span<const Transfer> transfers, const Launch& launch) {
  check_own(transfers);
  const auto lock = group_->occupy();
  captured_ |= launch.captured;
  if (launch.captured) {
    count_in_graph(&report_->begun, launch.stream);
  } else {
    follow_last(launch.stream);
    labels_->exchange(*group_, transfers, launch.stream, tick_);
  }
  const NcclLibrary& nccl = group_->library();
  NcclTogether together(*group_);
  for (const Transfer& one : transfers) {
    if (one.count == 0) continue;
    const auto call = [&](auto how) {
      return how(one.data, one.bytes(), nccl::uint8, one.peer, group_->comm(), launch.stream);
    };
    group_->check(one.sends ? call(nccl.send) : call(nccl.recv), "a message");
  }
  together.end(in_words(transfers.front(), rank_).c_str(), tick_);
  if (launch.captured) {
    count_in_graph(&report_->done[0], launch.stream);
  } else {
    note_launched(launch.stream, &transfers.front());
  }
}

std::optional<Transfer> NcclRunner::waiting_message() {
  const std::lock_guard lock(events_mutex_);
  const bool waits = !under_way_.empty() && under_way_.front().number > over_;
  return waits ? under_way_.front().message : std::nullopt;
}

// --- running operations ------------------------------------------------------------------------------------

// The host does not see when a graph is launched, so the GPU counts.
void NcclRunner::count_in_graph(std::uint64_t* counter, void* stream) {
  void* const to = counter;
  const void* const both[] = {counter, one_};
  CudaLibrary::check(KernelLibrary::get().combine(static_cast<int>(DType::uint64), static_cast<int>(Op::sum),
                                                  &to, 1, both, 2, 1, 1, stream, 1));
}

// A communicator's operations run one after the other. NCCL's own care, for all streams, is not relied on.
void NcclRunner::follow_last(void* stream) const {
  if (last() && last_stream_ != stream) CudaLibrary::check(cuda_.wait(last(), stream));
}

// If very many calls are running, the last event moves on with each.
void NcclRunner::note_launched(void* stream, const Transfer* message) {
  const std::lock_guard lock(events_mutex_);
  ++launched_;
  if (under_way_.size() < most_events) {
    if (free_events_.empty()) free_events_.push_back(new_event(cuda_, device_));
    under_way_.push_back({std::move(free_events_.back()), 0, {}});
    free_events_.pop_back();
  }
  under_way_.back().number = launched_;
  under_way_.back().message = message ? std::optional(*message) : std::nullopt;
  last_stream_ = stream;
  record_last(under_way_.back().event.get(), stream);
}

std::uint64_t NcclRunner::begun() {
  const std::lock_guard lock(events_mutex_);
  return launched_ + heard(report_->begun);
}

std::uint64_t NcclRunner::ended() {
  const OnDevice there(cuda_, device_);  // captures are not disturbed when a watch looks at events
  const std::lock_guard lock(events_mutex_);
  while (!under_way_.empty()) {
    int over = 0;
    CudaLibrary::check(cuda_.is_over(&over, under_way_.front().event.get()));
    if (!over) break;
    over_ = under_way_.front().number;
    // The last one may still be waited for.
    if (under_way_.size() == 1) break;
    free_events_.push_back(std::move(under_way_.front().event));
    under_way_.pop_front();
  }
  return over_ + heard(report_->done[0]);
}

// --- the group ---------------------------------------------------------------------------------------------

void NcclRunner::check() {
  if (labels_) labels_->check();
  if (const std::string failure = group_->failure(); !failure.empty()) throw Error(failure);
}

// NCCL switches to its GPU and back.
void NcclRunner::give_up() {
  std::optional<OnDevice> there;
  try {
    there.emplace(cuda_, device_);
  } catch (const Error&) {  // the GPU has failed; NCCL has threads, too
  }
  group_->abort();
}

void NcclRunner::register_memory(void* memory, std::size_t bytes, const Exchange& /*exchange*/) {
  group_->enroll(memory, bytes, tick_);
}

void NcclRunner::deregister_memory(void* memory) {
  group_->withdraw(memory, tick_);
}

// NCCL waits until all graphs that use it are gone, perhaps forever.
void NcclRunner::finish(Clock::duration patience, const Tick& tick) {
  const OnDevice there(cuda_, device_);
  group_->finish(captured_ ? std::min<Clock::duration>(patience, patience_with_graphs) : patience, tick);
}

}  // namespace ringreduce
