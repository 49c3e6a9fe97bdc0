#include "gpu/hosts/staging.h"

#include "gpu/hosts/slices.h"
#include "transport/interface/thread.h"

namespace ringreduce {
namespace {

// Of two, so that the next slice is copied while the network has one. Not measured on a card yet.
constexpr std::size_t room_of_slice = std::size_t{8} << 20;
constexpr std::uint64_t all_done = std::uint64_t{1} << 62;
constexpr int quick_looks = 100;
constexpr std::chrono::microseconds between_looks{50};
constexpr std::chrono::milliseconds time_to_find_it{500};

// So that the output begins where any element may.
std::size_t on_line(std::size_t bytes) {
  constexpr std::size_t unit = 64;
  return (bytes + unit - 1) / unit * unit;
}

std::size_t total(const std::vector<Block>& blocks) {
  std::size_t count = 0;
  for (const Block& block : blocks) count += block.count;
  return count;
}

}  // namespace

struct Staging::Slice {
  std::uint64_t number;
  Call call;  // on the host, where blocks lie side by side
  Extents input_extents, output_extents;
  // Of the arrays in GPU memory.
  std::vector<Block> from, to;
};

Staging::Staging(std::unique_ptr<Communicator> group)
    : cuda_(CudaLibrary::get()),
      group_(std::move(group)),
      words_(cuda_, DeviceMemory::on_host, 2 * sizeof(std::uint64_t)),
      arrived_(reinterpret_cast<std::uint64_t*>(words_.at())),
      done_(arrived_ + 1) {
  *arrived_ = *done_ = 0;
  for (auto& rooms : rooms_) {
    rooms.push_back(std::make_unique<DeviceMemory>(cuda_, DeviceMemory::on_host, room_of_slice + on_line(1)));
  }
  thread_ = thread_without_signals([this] { work(); });
}

Staging::~Staging() {
  give_up();
  thread_.join();
}

int Staging::same_algorithm(int handle, const Planner::Custom& custom) {
  const auto found = algorithms_.find(handle);
  if (found != algorithms_.end()) return found->second;
  const int own = group_->add_schedule(custom.name, custom.schedule, custom.heaviest_round, custom.order);
  return algorithms_.emplace(handle, own).first->second;
}

// --- on the stream -----------------------------------------------------------------------------------------

// The stream is done with a slice's memory before it fetches the next but one.
void Staging::launch(const Call& call, void* stream) {
  const Cut cut(call, group_->size(), room_of_slice);
  std::shared_ptr<Slice> before;
  for (std::size_t number = 0; number < cut.slices; ++number) {
    std::shared_ptr<Slice> slice = prepare(call, cut, number);
    fetch(call, slice, stream);
    if (before) put_back(call, *before, stream);
    before = std::move(slice);
  }
  if (before) put_back(call, *before, stream);
}

std::shared_ptr<Staging::Slice> Staging::prepare(const Call& call, const Cut& cut, std::size_t number) {
  auto slice = std::make_shared<Slice>();
  slice->number = ++launched_;
  const int world = group_->size(), rank = group_->rank();
  const auto cut_blocks = [&](bool of_input) {
    std::vector<Block> blocks = blocks_of(call, of_input, world, rank);
    for (Block& block : blocks) block = cut.of(block, number);
    return blocks;
  };
  slice->from = cut_blocks(true);
  slice->to = cut_blocks(false);
  const std::size_t element = size_of(call.dtype);
  const std::size_t input_bytes = on_line(total(slice->from) * element);
  char* const room = room_for(slice->number, input_bytes + total(slice->to) * element);

  Call& here = slice->call = call;
  here.device = on_host;
  here.input = room;
  here.output = room + input_bytes;
  here.timeout = 2 * group_->options().timeout;  // all ranks time out first, and know whom they wait for
  here.count = cut.of({0, call.count}, number).count;
  const auto side_by_side = [&](const Extents* extents, Extents& own) -> const Extents* {
    if (!extents) return nullptr;
    std::size_t offset = 0;
    for (const std::size_t count : extents->count) {
      own.offset.push_back(offset);
      own.count.push_back(cut.of({0, count}, number).count);
      offset += own.count.back();
    }
    return &own;
  };
  here.input_extents = side_by_side(call.input_extents, slice->input_extents);
  here.output_extents = call.output_extents == call.input_extents
                            ? here.input_extents
                            : side_by_side(call.output_extents, slice->output_extents);
  if (!has_array(call.collective, true, rank == call.root)) slice->from.clear();
  if (!has_array(call.collective, false, rank == call.root)) slice->to.clear();
  return slice;
}

// Earlier memory stays: a stream may use it.
char* Staging::room_for(std::uint64_t number, std::size_t bytes) {
  auto& rooms = rooms_[number % rooms_.size()];
  if (rooms.back()->bytes() < bytes) {
    rooms.push_back(std::make_unique<DeviceMemory>(cuda_, DeviceMemory::on_host, bytes));
  }
  return rooms.back()->at();
}

namespace {

// Calls copy(offset on the host, offset in the array, bytes), once for blocks that lie side by side.
template <typename Copy>
void each_run(const std::vector<Block>& blocks, std::size_t element, Copy copy) {
  std::size_t on_host = 0;
  for (std::size_t i = 0; i < blocks.size();) {
    const std::size_t begin = blocks[i].begin;
    std::size_t count = 0;
    for (; i < blocks.size() && blocks[i].begin == begin + count; ++i) count += blocks[i].count;
    if (count > 0) copy(on_host, begin * element, count * element);
    on_host += count * element;
  }
}

}  // namespace

void Staging::fetch(const Call& call, const std::shared_ptr<Slice>& slice, void* stream) {
  auto* const room = static_cast<char*>(const_cast<void*>(slice->call.input));
  each_run(slice->from, size_of(call.dtype), [&](std::size_t here, std::size_t there, std::size_t bytes) {
    CudaLibrary::check(cuda_.move(room + here, static_cast<const char*>(call.input) + there, bytes, stream));
  });
  CudaLibrary::check(cuda_.post(arrived_, slice->number, stream));
  const std::lock_guard lock(mutex_);
  slices_.push_back(slice);
  changed_->notify_all();
}

void Staging::put_back(const Call& call, const Slice& slice, void* stream) {
  CudaLibrary::check(cuda_.hold(done_, slice.number, stream));
  const auto* const room = static_cast<const char*>(slice.call.output);
  each_run(slice.to, size_of(call.dtype), [&](std::size_t here, std::size_t there, std::size_t bytes) {
    CudaLibrary::check(cuda_.move(static_cast<char*>(call.output) + there, room + here, bytes, stream));
  });
}

// --- on the host -------------------------------------------------------------------------------------------

void Staging::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_->wait(lock, [this] { return given_up_ || !slices_.empty(); });
    if (given_up_) return;
    const std::shared_ptr<Slice> slice = std::move(slices_.front());
    slices_.pop_front();
    lock.unlock();
    std::exception_ptr problem;
    try {
      if (has_arrived(slice->number)) group_->submit(slice->call)->wait(std::nullopt, [] {});
    } catch (...) {
      problem = std::current_exception();
    }
    lock.lock();
    if (given_up_) return;
    problem_ = problem;
    failed_ = Clock::now();
    if (problem) return;
    __atomic_store_n(done_, slice->number, __ATOMIC_RELEASE);
  }
}

// False if it no longer matters.
bool Staging::has_arrived(std::uint64_t number) {
  for (int looks = 0; __atomic_load_n(arrived_, __ATOMIC_ACQUIRE) < number; ++looks) {
    if (is_given_up()) return false;
    looks < quick_looks ? std::this_thread::yield() : std::this_thread::sleep_for(between_looks);
  }
  return true;
}

bool Staging::is_given_up() {
  const std::lock_guard lock(mutex_);
  return given_up_;
}

void Staging::check() {
  const std::lock_guard lock(mutex_);
  if (problem_ && Clock::now() - failed_ >= time_to_find_it) std::rethrow_exception(problem_);
}

void Staging::give_up() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    __atomic_store_n(done_, all_done, __ATOMIC_RELEASE);
    changed_->notify_all();
  }
  group_->leave();
}

}  // namespace ringreduce
