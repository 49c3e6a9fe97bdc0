#include "gpu/kernels/boxes.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>

#include "gpu/kernels/kernel_library.h"
#include "gpu/runner/whereabouts.h"
#include "transport/interface/errors.h"

namespace ringreduce {

namespace {

// By group (the address of its first rank's boxes in this process) and device.
struct Claim {
  const void* group;
  int device;
  void* stream;
  int rank;
};
std::mutex claims_mutex;
std::vector<Claim> claims;

// Who a rank sends to, itself included, and who it receives from.
int pairs_of(int world) {
  return 2 * world;
}

// A group's part of a GPU's thread blocks is small, so that a process can have many groups: 8 of an H100's
// 264. A group gets more, up to a sixteenth of what others have left, because each block of 256 threads has
// only 32 KiB under way: of ranks that share an H100, all-reduces of 64 MiB with 16 blocks took two thirds of
// the time that they took with 8.
constexpr int groups_of_a_gpu = 32, parts_of_what_is_left = 16, most_unasked = 16;

// The lanes of each pair: as many blocks as collectives have, or at least one lane.
int lanes_beside(int blocks, int world) {
  return std::clamp(blocks / pairs_of(world), 1, device::most_lanes);
}

constexpr std::size_t arena_bytes = std::size_t{256} << 10;

// Behind a rank's boxes, one for each rank: not 0 once it has left.
using Word = std::uint64_t;
constexpr Word has_left = 1;

// Boxes that their own process no longer uses, but other ranks may.
struct Waiting {
  std::unique_ptr<DeviceMemory> memory;
  int device;
  std::size_t words;  // from there on
  std::vector<int> ranks;

  bool is_over(const CudaLibrary& cuda, void* stream) const {
    std::vector<Word> said(static_cast<std::size_t>(ranks.back()) + 1);
    CudaLibrary::check(cuda.move(said.data(), memory->at() + words, said.size() * sizeof(Word), stream));
    CudaLibrary::check(cuda.synchronize(stream));
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return said[rank] == has_left; });
  }
};
std::mutex waiting_mutex;
auto& waiting = *new std::vector<Waiting>;  // never destroyed: the rest goes with the process

void give_back_what_nobody_writes_to(const CudaLibrary& cuda, int device, void* stream) {
  const std::lock_guard lock(waiting_mutex);
  for (std::size_t i = waiting.size(); i-- > 0;) {
    if (waiting[i].device == device && waiting[i].is_over(cuda, stream)) waiting.erase(waiting.begin() + i);
  }
}

}  // namespace

// `left`: the thread blocks that no group of the rank's process has claimed, before it claims its own.
struct DeviceBoxes::Gpu {
  Whereabouts where;
  std::int32_t device, capacity, left, blocks, most, lanes, claimed, wants_copy_engine;
};

int DeviceBoxes::part_of(const Gpu& gpu, int ranks) {
  return gpu.left / (parts_of_what_is_left * ranks);
}

DeviceBoxes::Gpu DeviceBoxes::introduce(bool messages, const GpuOptions& options) {
  Gpu gpu{};
  gpu.where = whereabouts_of(cuda_, device_);
  gpu.device = device_;
  gpu.wants_copy_engine = options.copy_engine ? 1 : 0;
  CudaLibrary::check(KernelLibrary::get().fit(&gpu.capacity));
  const std::lock_guard lock(claims_mutex);
  static std::vector<std::weak_ptr<Claimed>> all;
  std::erase_if(all, [](const auto& one) { return one.expired(); });
  gpu.left = gpu.capacity;
  for (const auto& one : all) {
    const auto other = one.lock();
    if (other && other->first == device_) gpu.left -= other->second;
  }
  const int pairs = pairs_of(world_);
  const int most = options.max_blocks > 0 ? options.max_blocks : device::most_blocks;
  gpu.blocks = std::min(
      {std::max({gpu.capacity / groups_of_a_gpu, options.min_blocks, 1}), most, device::most_blocks});
  if (messages) gpu.lanes = lanes_beside(gpu.blocks, world_);
  if (options.max_blocks > 0 && gpu.blocks + gpu.lanes * pairs > most) {
    gpu.lanes = 2 * pairs > most ? 0 : lanes_beside(most / 4, world_);
    gpu.blocks = std::min(gpu.blocks, most - gpu.lanes * pairs);
  }
  gpu.most = std::max(gpu.blocks, std::min({part_of(gpu, 1), most_unasked, most - gpu.lanes * pairs}));
  gpu.claimed = std::clamp(gpu.most + gpu.lanes * pairs, 0, std::max(gpu.left, 0));
  claimed_ = std::make_shared<Claimed>(device_, gpu.claimed);
  all.push_back(claimed_);
  return gpu;
}

// The space that ranks find on a GPU: each of them may have so many blocks.
struct DeviceBoxes::Room {
  int ranks = 0, processes = 0, left = 0, each = 0;

  Room(const Gpu& gpu, const std::vector<Gpu>& gpus) {
    int in_process = 0, claimed = 0;
    for (const Gpu& other : gpus) {
      if (other.where.gpu != gpu.where.gpu) continue;
      ++ranks;
      if (other.where.process != gpu.where.process) continue;
      ++in_process;
      claimed += other.claimed;
      left = std::max(left, other.left);
    }
    processes = (ranks + in_process - 1) / in_process;
    each = std::min(claimed / in_process, left / ranks);
  }
};

// Lays out blocks that run at the same time as those of all ranks on a device. The last half of a GPU's
// blocks is for collectives only, because messages can go through the host.
void DeviceBoxes::share_blocks(const std::vector<Gpu>& gpus) {
  const int pairs = pairs_of(world_);
  int blocks = device::most_blocks, lanes = device::most_lanes, each = INT_MAX;
  std::string problem;
  bool apart = true;
  for (const Gpu& gpu : gpus) {
    const Room room(gpu, gpus);
    const int all = gpu.blocks + gpu.lanes * pairs;
    apart = apart && room.ranks == 1;
    blocks = std::min(blocks, std::max(gpu.blocks, std::min(gpu.most, part_of(gpu, room.ranks))));
    lanes =
        room.each < all || room.left - room.ranks * all < gpu.capacity / 2 ? 0 : std::min(lanes, gpu.lanes);
    each = std::min(each, room.each);
    if (room.each > 0 || !problem.empty()) continue;
    problem = "a GPU that " + std::to_string(room.ranks) + (room.ranks == 1 ? " rank uses" : " ranks share") +
              " runs " + std::to_string(gpu.capacity) +
              " thread blocks at the same time, and other groups have claimed " +
              std::to_string(gpu.capacity - room.left) +
              " of them, so that not one is left for each: close groups, lower their max_blocks, use fewer "
              "ranks for each GPU";
  }
  if (each < 1) throw NoRoom(problem + or_nccl, apart);
  layout_ = {std::min(blocks, each - lanes * pairs), world_, arena_bytes, lanes};
  // Each process counts the blocks of all.
  const std::lock_guard lock(claims_mutex);
  claimed_->second = (layout_.blocks + lanes * pairs) * Room(gpus[rank_], gpus).processes;
}

void DeviceBoxes::reach(int peer, const Gpu& gpu, const std::string& handle) {
  if (gpu.where.process == this_process()) {
    auto& devices = devices_of_peers_;
    if (gpu.device != device_ && std::find(devices.begin(), devices.end(), gpu.device) == devices.end()) {
      CudaLibrary::check(cuda_.reach(gpu.device));
      devices.push_back(gpu.device);
    }
    void* at = nullptr;
    std::memcpy(&at, handle.data(), sizeof at);
    kept_.push_back(find_known(at));
    memories_[peer] = static_cast<char*>(at);
    return;
  }
  void* at = nullptr;
  const char* failure = cuda_.map(&at, handle.data() + sizeof at, 1);
  if (failure) throw Error("cannot map the memory of rank " + std::to_string(peer) + ": " + failure);
  memories_[peer] = static_cast<char*>(at);
}

DeviceBoxes::DeviceBoxes(const CudaLibrary& cuda, int device, int rank, int world, const Exchange& exchange,
                         void* stream, bool messages, const GpuOptions& options)
    : cuda_(cuda), device_(device), rank_(rank), world_(world), memories_(static_cast<std::size_t>(world)) {
  const OnDevice there(cuda_, device_);
  const std::vector<Gpu> gpus =
      exchange_values_or_fail(exchange, [&] { return introduce(messages, options); });
  std::vector<Whereabouts> all;
  for (const Gpu& gpu : gpus) all.push_back(gpu.where);
  try {
    check_queues(all);
    share_blocks(gpus);
  } catch (const Error&) {  // on all ranks; none asks again before all have given up what they had claimed
    claimed_.reset();
    exchange("");
    throw;
  }
  for (int peer = 0; peer < world_; ++peer) {
    if (gpus[peer].where.process != gpus[rank_].where.process) others_.push_back(peer);
    wants_copy_engine_ = wants_copy_engine_ || gpus[peer].wants_copy_engine != 0;
  }
  const std::vector<std::string> handles = exchange_or_fail(exchange, [&] { return offer(stream); });
  exchange_or_fail(exchange, [&] {
    for (int peer = 0; peer < world_; ++peer) {
      if (peer != rank_) reach(peer, gpus[peer], handles[peer]);
    }
    return std::string();
  });
  if (!one_process()) cuda_.unshare(handles[rank_].data() + sizeof(void*));
}

std::shared_ptr<DeviceMemory> DeviceBoxes::take(void* stream) const {
  give_back_what_nobody_writes_to(cuda_, device_, stream);
  auto memory = std::make_unique<DeviceMemory>(cuda_, device_, layout_.bytes() + world_ * sizeof(Word));
  if (one_process()) return memory;
  const auto wait = [device = device_, words = layout_.bytes(), ranks = others_](DeviceMemory* done) {
    const std::lock_guard lock(waiting_mutex);
    waiting.push_back({std::unique_ptr<DeviceMemory>(done), device, words, ranks});
  };
  return {memory.release(), wait};
}

// Makes this rank's boxes. Returns their address, for ranks of this process, and a handle for others.
std::string DeviceBoxes::offer(void* stream) {
  const auto memory = take(stream);
  CudaLibrary::check(cuda_.fill(memory->at(), 0, memory->bytes(), stream));
  CudaLibrary::check(cuda_.synchronize(stream));
  know(memory);
  kept_.push_back(memory);
  memories_[rank_] = memory->at();
  void* const at = memory->at();
  std::string handle(device::handle_bytes, '\0');
  if (!one_process()) CudaLibrary::check(cuda_.share(handle.data(), at));
  return bytes_of(at) + handle;
}

void DeviceBoxes::claim(void* stream) const {
  const std::lock_guard lock(claims_mutex);
  for (const Claim& claim : claims) {
    if (claim.group != memories_[0] || claim.device != device_ || claim.stream != stream) continue;
    if (claim.rank == rank_) return;
    throw InvalidArgument(
        "rank " + std::to_string(claim.rank) + " of this group launches on the same stream as rank " +
        std::to_string(rank_) +
        ", so one kernel would wait for the other behind it: give each rank its own stream");
  }
  claims.push_back({memories_[0], device_, stream, rank_});
}

void DeviceBoxes::leave(void* stream) const {
  const OnDevice there(cuda_, device_);
  for (const int peer : others_) {
    char* const words = memories_[peer] + layout_.bytes();
    CudaLibrary::check(
        cuda_.move(words + static_cast<std::size_t>(rank_) * sizeof(Word), &has_left, sizeof(Word), stream));
  }
  CudaLibrary::check(cuda_.synchronize(stream));
}

DeviceBoxes::~DeviceBoxes() {
  {
    const std::lock_guard lock(claims_mutex);
    std::erase_if(claims,
                  [&](const Claim& claim) { return claim.group == memories_[0] && claim.rank == rank_; });
  }
  try {
    const OnDevice there(cuda_, device_);
    for (const int peer : others_) {
      if (memories_[peer]) cuda_.unmap(memories_[peer]);
    }
  } catch (const Error&) {  // a GPU that has failed has released everything
  }
}

}  // namespace ringreduce
