#include "engine/gpu/hosts/runner.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "engine/gpu/kernel_library.h"
#include "engine/gpu/whereabouts.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr std::size_t KiB = 1024;
// Below it, three steps take longer than one that carries more. Not measured on a card yet.
constexpr std::size_t two_levels_from = 64 * KiB;
constexpr Target two_levels{.own_way = "two levels"};

// Near-equal parts of an array.
Extents shares_of(std::size_t count, std::size_t parts) {
  Extents shares;
  for (std::size_t part = 0; part < parts; ++part) {
    shares.offset.push_back(count * part / parts);
    shares.count.push_back(count * (part + 1) / parts - shares.offset.back());
  }
  return shares;
}

std::byte* at(const void* array, std::size_t element, DType dtype) {
  return static_cast<std::byte*>(const_cast<void*>(array)) + element * size_of(dtype);
}

// A part of the call for the ranks of a host, whose kernels take exact values.
Call inside_host(const Call& call, Collective collective, const void* input, void* output,
                 std::size_t count) {
  Call part = call;
  part.collective = collective;
  part.input = input;
  part.output = output;
  part.count = count;
  part.wire = Encoding::none;
  if (part.op == Op::avg) part.op = Op::sum;
  return part;
}

// One between hosts. Values have been scaled by now, and are divided later.
Call between_hosts(const Call& call, const void* input, void* output, std::size_t count) {
  Call part = call;
  part.input = input;
  part.output = output;
  part.count = count;
  if (part.op == Op::avg || part.op == Op::premul_sum) part.op = Op::sum;
  return part;
}

}  // namespace

// --- meeting -----------------------------------------------------------------------------------------------

HostsRunner::HostsRunner(int rank, int world, int device, bool reproducible, const std::vector<int>& hosts,
                         const Split& split, const Exchange& exchange,
                         const std::function<void(const std::string&)>& say)
    : Runner(rank, world, device),
      reproducible_(reproducible),
      event_(new_event(cuda_, device)),
      words_(cuda_, DeviceMemory::on_host, 2 * sizeof(std::uint64_t)),
      begun_(reinterpret_cast<std::uint64_t*>(words_.at())),
      ended_(begun_ + 1),
      grid_(grid_of(hosts, rank)) {
  *begun_ = *ended_ = 0;
  check_queues(exchange);
  std::vector<int> everyone;
  for (int member = 0; member < world; ++member) everyone.push_back(member);
  all_ = std::make_unique<Staging>(Subgroup(split(0), everyone));
  if (!grid_) return;
  inside_ = std::make_unique<Subgroup>(split(grid_->host), grid_->inside);
  Subgroup across(split(grid_->place), grid_->across);
  try {
    exchange_or_fail(exchange, [&] {
      const OnDevice there(cuda_, device);
      CudaLibrary::check(KernelLibrary::get().load());
      (*inside_)->prepare_device(device);
      return std::string();
    });
    across_ = std::make_unique<Staging>(std::move(across));
  } catch (const Failure&) {
    throw;
  } catch (const Error& error) {
    say(std::string("calls have one level, without kernels: ") + error.what());
    inside_.reset();
  }
}

// A stream that waits for the host must not hold up another rank's copy to the host.
void HostsRunner::check_queues(const Exchange& exchange) const {
  std::vector<Whereabouts> all(static_cast<std::size_t>(world_));
  const auto blobs = exchange_or_fail(exchange, [&] { return bytes_of(whereabouts_of(cuda_, device_)); });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(&all[rank], blobs[rank].data(), std::min(blobs[rank].size(), sizeof(Whereabouts)));
  }
  for (const Whereabouts& one : all) {
    const auto here = std::count_if(all.begin(), all.end(), [&](const Whereabouts& other) {
      return other.process == one.process && other.gpu == one.gpu;
    });
    if (here == 1 || streams_of_a_rank * here <= one.queues) continue;
    throw InvalidArgument(std::to_string(here) + " ranks of one process share a GPU, and its " +
                          std::to_string(one.queues) + " queues are too few for their streams: raise " +
                          queues_variable + ", or start more processes");
  }
}

std::optional<HostsRunner::Grid> HostsRunner::grid_of(const std::vector<int>& hosts, int rank) {
  std::map<int, std::vector<int>> ranks;
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) ranks[hosts[r]].push_back(r);
  if (ranks.size() < 2 || ranks[hosts[rank]].size() < 2) return std::nullopt;
  Grid grid;
  grid.inside = ranks[hosts[rank]];
  while (grid.inside[grid.place] != rank) ++grid.place;
  grid.place_of.resize(hosts.size());
  int next = 0;
  for (const auto& [host, here] : ranks) {
    if (here.size() != grid.each()) return std::nullopt;
    if (host == hosts[rank]) grid.host = static_cast<int>(grid.hosts());
    grid.across.push_back(here[grid.place]);
    for (std::size_t place = 0; place < here.size(); ++place) {
      grid.place_of[here[place]] = static_cast<int>(place);
      grid.in_order &= here[place] == next++;
    }
  }
  return grid;
}

HostsRunner::~HostsRunner() {
  give_up();
  try {
    while (!is_last_over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } catch (const Error&) {  // a GPU that has failed does nothing any more
  }
}

std::size_t HostsRunner::footprint() const {
  std::size_t bytes = across_ ? (*inside_)->device_footprint() : 0;
  for (const auto& room : rooms_) bytes += room->bytes();
  return bytes;
}

// --- planning ----------------------------------------------------------------------------------------------

// The same on all ranks.
bool HostsRunner::takes_two_levels(const Call& call, const Planner& planner) const {
  if (!across_ || call.algorithm != automatic || planner.is_forced(call.collective)) return false;
  if (call.input_extents || bytes_of_output(call, world_, rank_) < two_levels_from) return false;
  if (reduces(call.collective)) {
    if (reproducible_ || (call.op == Op::avg && !supports(call.dtype, Op::premul_sum))) return false;
  }
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
      return true;
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return grid_->in_order;
    default:
      return false;
  }
}

const Plan& HostsRunner::plan(Planner& planner, const Call& call, const Launch& launch) {
  if (launch.captured) {
    throw InvalidArgument(
        "stream is being captured, but calls of this group go through the CPU, which a graph cannot repeat; "
        "NCCL can (RINGREDUCE_GPU_TRANSPORT=nccl)");
  }
  two_levels_ = takes_two_levels(call, planner);
  if (two_levels_) return planner.plan(call, two_levels);
  // The CPU's plan is what the group of all ranks runs.
  const Plan& plan = planner.plan(call);
  const Planner::Custom* const custom = planner.custom(call.algorithm);
  algorithm_ = custom ? all_->same_algorithm(call.algorithm, *custom) : call.algorithm;
  return plan;
}

// --- launching ---------------------------------------------------------------------------------------------

void HostsRunner::launch(const Call& call, const Plan&, const Launch& launch) {
  CudaLibrary::check(cuda_.post(begun_, ++launched_, launch.stream));
  try {
    if (two_levels_) {
      launch_two_levels(call, launch.stream);
    } else {
      Call here = call;
      here.algorithm = algorithm_;
      all_->launch(here, launch.stream);
    }
  } catch (const Failure& failure) {
    throw inside_ ? inside_->in_all(failure) : failure;
  } catch (const Error& error) {
    throw Error(error.what());  // also if it is closed, or refuses: what is launched goes on elsewhere
  }
  CudaLibrary::check(cuda_.post(ended_, launched_, launch.stream));
  record_last(event_.get(), launch.stream);
}

void HostsRunner::launch_two_levels(const Call& call, void* stream) {
  switch (call.collective) {
    case Collective::all_reduce:
      return all_reduce(call, stream);
    case Collective::reduce_scatter:
      return reduce_scatter(call, stream);
    case Collective::all_gather:
      return all_gather(call, stream);
    default:
      return broadcast(call, stream);
  }
}

// Each rank has the sum of its host's values of a share, then that of all hosts', and passes it on.
void HostsRunner::all_reduce(const Call& call, void* stream) {
  const Extents shares = shares_of(call.count, grid_->each());
  const std::size_t count = shares.count[grid_->place];
  void* const share = at(call.output, shares.offset[grid_->place], call.dtype);
  const auto inside = [&](Collective collective, const void* input, void* output) {
    Call part = inside_host(call, collective, input, output, count);
    if (call.count % grid_->each() != 0) part.input_extents = part.output_extents = &shares;
    (*inside_)->enqueue(part, stream);
  };
  inside(Collective::reduce_scatter, call.input, share);
  across_->launch(between_hosts(call, share, share, count), stream);
  divide(call, share, count, stream);
  inside(Collective::all_gather, share, call.output);
}

// The blocks for each host's ranks, one host after the other.
void HostsRunner::reduce_scatter(const Call& call, void* stream) {
  char* const sums = room_for(grid_->hosts() * call.count * size_of(call.dtype));
  for (std::size_t host = 0; host < grid_->hosts(); ++host) {
    const std::byte* const blocks = at(call.input, host * grid_->each() * call.count, call.dtype);
    void* const sum = at(sums, host * call.count, call.dtype);
    (*inside_)->enqueue(inside_host(call, Collective::reduce_scatter, blocks, sum, call.count), stream);
  }
  across_->launch(between_hosts(call, sums, call.output, call.count), stream);
  divide(call, call.output, call.count, stream);
}

void HostsRunner::all_gather(const Call& call, void* stream) {
  Extents blocks;
  for (const int rank : grid_->across) {
    blocks.offset.push_back(static_cast<std::size_t>(rank) * call.count);
    blocks.count.push_back(call.count);
  }
  Call part = between_hosts(call, call.input, call.output, call.count);
  part.input_extents = part.output_extents = &blocks;
  across_->launch(part, stream);
  for (std::size_t host = 0; host < grid_->hosts(); ++host) {
    void* const own = at(call.output, blocks.offset[host], call.dtype);
    void* const of_host = at(call.output, host * grid_->each() * call.count, call.dtype);
    (*inside_)->enqueue(inside_host(call, Collective::all_gather, own, of_host, call.count), stream);
  }
}

// From the root to the ranks with its place, and from those to their hosts.
void HostsRunner::broadcast(const Call& call, void* stream) {
  const int place = grid_->place_of[call.root];
  if (place == grid_->place) {
    Call part = between_hosts(call, call.input, call.output, call.count);
    const auto root = std::find(grid_->across.begin(), grid_->across.end(), call.root);
    part.root = static_cast<int>(root - grid_->across.begin());
    across_->launch(part, stream);
  }
  Call part = inside_host(call, Collective::broadcast, call.output, call.output, call.count);
  part.root = place;
  (*inside_)->enqueue(part, stream);
}

void HostsRunner::divide(const Call& call, void* values, std::size_t count, void* stream) const {
  if (call.op != Op::avg) return;
  KernelLibrary::get().scale_span(call.dtype, values, values, count, 1.0 / world_, stream);
}

// Earlier memory stays: a stream may use it.
char* HostsRunner::room_for(std::size_t bytes) {
  if (rooms_.empty() || rooms_.back()->bytes() < bytes) {
    rooms_.push_back(std::make_unique<DeviceMemory>(cuda_, device_, bytes));
  }
  return rooms_.back()->at();
}

// --- the end -----------------------------------------------------------------------------------------------

void HostsRunner::check() {
  all_->check();
  if (!across_) return;
  across_->check();
  try {
    (*inside_)->usable();
  } catch (const Failure& failure) {
    inside_->pass_on(failure);
  }
}

// Streams go on first: kernels may be behind what they wait for.
void HostsRunner::give_up() {
  all_->give_up();
  if (!across_) return;
  across_->give_up();
  (*inside_)->leave();
}

void HostsRunner::finish(Clock::duration, const Tick&) {
  all_->finish();
  if (!across_) return;
  across_->finish();
  (*inside_)->close();
}

}  // namespace ringreduce
