#include "gpu/copy_engine/copy_engine.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr std::uint64_t forever = std::uint64_t{1} << 62;
constexpr int contract_bits = 16;
constexpr Target own_way{.own_way = "copy_engine"};
// Longer broadcasts go from the root to each rank in shares, which the ranks then read from each other. Not
// measured between GPUs.
constexpr std::uint64_t longest_whole = std::uint64_t{256} << 10;
constexpr std::uint64_t unit_of_share = 256;

std::uint64_t address(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

CopyEngine::CopyEngine(const CudaLibrary& cuda, int device, int rank, int world, bool one_process,
                       const Exchange& exchange)
    : cuda_(cuda),
      device_(device),
      rank_(rank),
      world_(world),
      words_(static_cast<std::size_t>(world)),
      counts_(cuda, DeviceMemory::on_host, 2 * sizeof(std::uint64_t)),
      begun_(reinterpret_cast<std::uint64_t*>(counts_.at())),
      ended_(begun_ + 1) {
  *begun_ = *ended_ = 0;
  one_process ? reach_in_process(exchange) : reach_by_pages(exchange);
}

// Unpinning memory may wait for everything that runs, and so for other ranks of this process.
void CopyEngine::reach_in_process(const Exchange& exchange) {
  const std::size_t bytes = words_.size() * sizeof(Words);
  const std::vector<Words*> all = exchange_values_or_fail(exchange, [&] {
    kept_.push_back(std::make_shared<DeviceMemory>(cuda_, DeviceMemory::on_host, bytes));
    know(kept_[0]);
    std::memset(kept_[0]->at(), 0, bytes);
    return own_ = reinterpret_cast<Words*>(kept_[0]->at());
  });
  for (int peer = 0; peer < world_; ++peer) {
    words_[peer] = all[peer];
    if (peer != rank_) kept_.push_back(find_known(all[peer]));
  }
}

void CopyEngine::reach_by_pages(const Exchange& exchange) {
  const std::size_t bytes = words_.size() * sizeof(Words);
  const std::vector<std::string> addresses = exchange_or_fail(exchange, [&] {
    try {
      pages_ = std::make_unique<SharedPages>(rank_, world_, bytes);
    } catch (const std::bad_alloc&) {
      throw Error("max_blocks=0 needs memory on the host that all ranks share, and there is none");
    }
    own_ = reinterpret_cast<Words*>(pages_->of(rank_));
    return pages_->address();
  });
  exchange_or_fail(exchange, [&] {
    if (!pages_->open(addresses)) throw Error("max_blocks=0: the memory of the other ranks cannot be opened");
    const OnDevice there(cuda_, device_);
    for (int peer = 0; peer < world_; ++peer) {
      void* at = nullptr;
      CudaLibrary::check(cuda_.pin_on_host(&at, pages_->of(peer), bytes));
      words_[peer] = static_cast<Words*>(at);
    }
    return std::string();
  });
}

CopyEngine::~CopyEngine() {
  try {
    const OnDevice there(cuda_, device_);
    for (int peer = 0; pages_ && peer < world_; ++peer) cuda_.unpin_on_host(pages_->of(peer));
  } catch (const Error&) {  // a GPU that has failed has released everything
  }
}

void CopyEngine::give_up() {
  for (int peer = 0; peer < world_; ++peer) {
    __atomic_store_n(&own_[peer].ready, forever, __ATOMIC_RELEASE);
    __atomic_store_n(&own_[peer].done, forever, __ATOMIC_RELEASE);
  }
}

// --- registered memory -------------------------------------------------------------------------------------

void CopyEngine::add(const void* memory, std::size_t bytes, std::span<const std::uint64_t> places,
                     const Exchange& exchange) {
  const auto of_ranks =
      exchange({reinterpret_cast<const char*>(places.data()), places.size() * sizeof(std::uint64_t)});
  Window made{0, address(memory), bytes, std::vector<std::uint64_t>(static_cast<std::size_t>(world_))};
  for (int peer = 0; peer < world_; ++peer) {
    if (of_ranks[peer].size() != places.size_bytes()) throw Error("a malformed blob of an exchange");
    std::memcpy(&made.places[peer], of_ranks[peer].data() + rank_ * sizeof(std::uint64_t),
                sizeof(std::uint64_t));
  }
  const std::lock_guard lock(mutex_);
  made.number = ++last_number_;
  windows_.push_back(std::move(made));
}

void CopyEngine::remove(const void* memory) {
  const std::lock_guard lock(mutex_);
  std::erase_if(windows_, [&](const Window& one) { return one.begin == address(memory); });
}

auto CopyEngine::spot_of(const void* array, std::size_t bytes) const -> std::optional<Spot> {
  const std::lock_guard lock(mutex_);
  for (const Window& window : windows_) {
    const std::uint64_t offset = address(array) - window.begin;
    if (offset > window.bytes || bytes > window.bytes - offset) continue;
    Spot spot{window.places, window.number, offset, false};
    for (std::uint64_t& place : spot.places) place += offset;
    return spot;
  }
  return std::nullopt;
}

// Only what peers read must be registered.
auto CopyEngine::spot_of(const Call& call) const -> std::optional<Spot> {
  const std::size_t bytes = call.count * size_of(call.dtype), all = bytes * static_cast<std::size_t>(world_);
  if (call.input_extents || call.split != 0 || bytes == 0) return std::nullopt;
  switch (call.collective) {
    case Collective::all_gather: {
      const bool in_place = address(call.input) == address(call.output) + rank_ * bytes;
      auto spot = in_place ? spot_of(call.output, all) : spot_of(call.input, bytes);
      if (spot) spot->in_place = in_place;
      return spot;
    }
    case Collective::gather:
      return spot_of(call.input, bytes);
    case Collective::all_to_all: {
      const std::uint64_t input = address(call.input), output = address(call.output);
      if (input < output + all && output < input + all) return std::nullopt;
      return spot_of(call.input, all);
    }
    case Collective::broadcast:
      return spot_of(call.output, bytes);
    default:  // scatter: only the root has what others would read
      return std::nullopt;
  }
}

const Plan* CopyEngine::plan(Planner& planner, const Call& call) {
  spot_ = spot_of(call);
  if (!spot_) return nullptr;
  Call here = call;
  here.split = in_registered_memory(spot_->number, spot_->offset, spot_->in_place);
  return &planner.plan(here, own_way);
}

// --- what a rank copies ------------------------------------------------------------------------------------

// From every rank, `shift` bytes behind its spot and, in place, behind its block's begin; other ranks come
// first, each rank beginning with another.
auto CopyEngine::round_of(std::uint64_t shift, const Call& call, bool reads, bool is_read) const -> Round {
  const std::uint64_t bytes = call.count * size_of(call.dtype);
  Round round;
  for (int i = 1; i <= world_; ++i) {
    const int peer = (rank_ + i) % world_;
    const std::uint64_t behind = static_cast<std::uint64_t>(peer) * bytes;
    const std::uint64_t source = spot_->places[peer] + shift + (spot_->in_place ? behind : 0);
    const std::uint64_t target = address(call.output) + behind;
    if (reads && (peer != rank_ || source != target)) round.copies.push_back({peer, source, target, bytes});
    if (is_read && peer != rank_ && (call.collective != Collective::gather || peer == call.root)) {
      round.readers.push_back(peer);
    }
  }
  return round;
}

auto CopyEngine::broadcast(std::uint64_t output, std::uint64_t bytes, int root) const -> std::vector<Round> {
  const auto number = [&](int rank) { return (rank - root - 1 + world_) % world_; };
  const int others = world_ - 1;
  const bool in_shares = bytes > longest_whole && others > 1;
  const auto cut = [&](int share) {
    const std::uint64_t units = (bytes + unit_of_share - 1) / unit_of_share;
    const auto begin = units * static_cast<std::uint64_t>(share) / static_cast<std::uint64_t>(others);
    return std::min(begin * unit_of_share, bytes);
  };
  const auto copy_of = [&](int from, std::uint64_t begin, std::uint64_t end) {
    return Copy{from, spot_->places[from] + begin, output + begin, end - begin};
  };
  std::vector<Round> rounds(in_shares ? 2 : 1);
  for (int i = 1; i < world_; ++i) {
    const int peer = (rank_ + i) % world_;
    if (rank_ == root) {
      rounds[0].readers.push_back(peer);
    } else if (peer == root) {
      const int own = number(rank_);
      rounds[0].copies.push_back(in_shares ? copy_of(root, cut(own), cut(own + 1)) : copy_of(root, 0, bytes));
    } else if (in_shares) {
      rounds[1].copies.push_back(copy_of(peer, cut(number(peer)), cut(number(peer) + 1)));
      rounds[1].readers.push_back(peer);
    }
  }
  return rounds;
}

auto CopyEngine::rounds_of(const Call& call) const -> std::vector<Round> {
  const std::uint64_t bytes = call.count * size_of(call.dtype);
  switch (call.collective) {
    case Collective::broadcast:
      return broadcast(address(call.output), bytes, call.root);
    case Collective::gather:
      return {round_of(0, call, rank_ == call.root, rank_ != call.root)};
    case Collective::all_to_all:
      return {round_of(static_cast<std::uint64_t>(rank_) * bytes, call, true, true)};
    default:
      return {round_of(0, call, true, true)};
  }
}

// --- on the stream -----------------------------------------------------------------------------------------

void CopyEngine::launch(const Call& call, std::uint64_t contract, void* stream) {
  CudaLibrary::check(cuda_.post(begun_, ++launched_, stream));
  if (call.collective == Collective::broadcast && rank_ == call.root && call.input != call.output) {
    const Copy own{rank_, address(call.input), address(call.output), call.count * size_of(call.dtype)};
    copy({&own, 1}, stream);
  }
  for (const Round& round : rounds_of(call)) run(round, contract, stream);
  CudaLibrary::check(cuda_.post(ended_, launched_, stream));
}

// A rank waits for all that it has read from or is read by, in each call. So no word is written again before
// it was seen. The number's last digits are of the contract: of two ranks that differ, one waits, and is
// found.
void CopyEngine::run(const Round& round, std::uint64_t contract, void* stream) {
  constexpr std::uint64_t of_contract = (std::uint64_t{1} << contract_bits) - 1;
  const std::uint64_t number = ++round_ << contract_bits | (contract & of_contract);
  const auto post = [&](std::uint64_t& word) { CudaLibrary::check(cuda_.post(&word, number, stream)); };
  const auto hold = [&](std::uint64_t& word) { CudaLibrary::check(cuda_.hold(&word, number, stream)); };
  Words* const own = words_[rank_];
  for (const int reader : round.readers) post(words_[reader][rank_].ready);
  for (const Copy& one : round.copies) {
    if (one.from != rank_) hold(own[one.from].ready);
  }
  copy(round.copies, stream);
  for (const Copy& one : round.copies) {
    if (one.from != rank_) post(words_[one.from][rank_].done);
  }
  for (const int reader : round.readers) hold(own[reader].done);
}

void CopyEngine::copy(std::span<const Copy> copies, void* stream) const {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const Copy& one : copies) {
    if (one.bytes == 0) continue;
    to.push_back(reinterpret_cast<void*>(one.target));
    from.push_back(reinterpret_cast<const void*>(one.source));
    bytes.push_back(one.bytes);
  }
  if (to.empty()) return;
  CudaLibrary::check(
      cuda_.move_all(to.data(), from.data(), bytes.data(), static_cast<int>(to.size()), stream));
}

}  // namespace ringreduce
