#include "gpu/nccl/contract.h"

#include <thread>

namespace ringreduce {
namespace {

// Compares every call at first, when programs are likeliest to differ, and then some.
constexpr std::uint64_t first_calls = 8, calls_apart = 16;

}  // namespace

bool NcclContract::is_due(std::uint64_t call) {
  return call < first_calls || call % calls_apart == 0;
}

NcclContract::NcclContract(const CudaLibrary& cuda, int device)
    : cuda_(cuda),
      memory_(cuda, device, most * sizeof(Words)),
      on_host_(cuda, DeviceMemory::on_host, 2 * most * sizeof(Words)),
      there_(reinterpret_cast<Words*>(memory_.at())),
      given_(reinterpret_cast<Words*>(on_host_.at())),
      heard_(given_ + most) {}

void NcclContract::pledge(NcclGroup& group, std::uint64_t contract, void* stream,
                          const NcclGroup::Tick& tick) {
  std::unique_lock lock(mutex_);
  while (under_way_.size() == most && !hears_of_the_oldest()) {
    lock.unlock();
    tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  const std::size_t slot = next_++ % most;
  given_[slot] = {contract | 1, ~contract | 1};  // neither is 0
  heard_[slot] = {0, 0};
  Words* const words = there_ + slot;
  CudaLibrary::check(cuda_.move(words, given_ + slot, sizeof(Words), stream));
  group.complete(group.library().all_reduce(words, words, 2, nccl::uint64, nccl::max, group.comm(), stream),
                 "comparing calls", tick);
  CudaLibrary::check(cuda_.move(heard_ + slot, words, sizeof(Words), stream));
  under_way_.push_back(slot);
}

bool NcclContract::hears_of_the_oldest() {
  const std::size_t slot = under_way_.front();
  const auto load = [](const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); };
  const Words heard{load(heard_[slot].all), load(heard_[slot].inverse)};
  if (heard.all == 0 || heard.inverse == 0) return false;
  is_broken_ = is_broken_ || heard.all != given_[slot].all || heard.inverse != given_[slot].inverse;
  under_way_.pop_front();
  return true;
}

bool NcclContract::is_broken() {
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && hears_of_the_oldest()) {
  }
  return is_broken_;
}

}  // namespace ringreduce
