#include "gpu/nccl/labels.h"

#include <thread>

#include "gpu/runner/messenger.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Compares every message at first, when programs are likeliest to differ, and then some.
constexpr std::uint64_t first_messages = 8, messages_apart = 16;

bool has_label(std::uint64_t message) {
  return message < first_messages || message % messages_apart == 0;
}

}  // namespace

NcclLabels::NcclLabels(const CudaLibrary& cuda, int rank, int world, int device)
    : cuda_(cuda),
      rank_(rank),
      memory_(cuda, device, most * sizeof(std::uint64_t)),
      on_host_(cuda, DeviceMemory::on_host, most * sizeof(std::uint64_t)),
      there_(reinterpret_cast<std::uint64_t*>(memory_.at())),
      heard_(reinterpret_cast<std::uint64_t*>(on_host_.at())) {
  for (auto& by_peer : messages_) by_peer.resize(static_cast<std::size_t>(world));
}

// Both ends number a pair's messages alike.
std::vector<NcclLabels::Due> NcclLabels::take_due(std::span<const Transfer> transfers) {
  auto messages = messages_;
  std::vector<Due> due;
  for (const Transfer& one : transfers) {
    if (one.peer != rank_ && has_label(messages[one.sends ? 1 : 0][one.peer]++)) {
      due.push_back({next_ + due.size(), &one});
    }
  }
  if (due.size() > most) {
    throw InvalidArgument(std::to_string(transfers.size()) +
                          " messages are too many for one batch over NCCL: their ends are compared, which "
                          "takes " +
                          std::to_string(due.size()) + " words, and there is room for " +
                          std::to_string(most));
  }
  messages_ = std::move(messages);
  next_ += due.size();
  return due;
}

void NcclLabels::make_room(const NcclGroup::Tick& tick) {
  std::unique_lock lock(mutex_);
  while (!under_way_.empty() && next_ - under_way_.front().number > most && !hears_of_the_oldest()) {
    lock.unlock();
    tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
}

void NcclLabels::exchange(NcclGroup& group, std::span<const Transfer> transfers, void* stream,
                          const NcclGroup::Tick& tick) {
  const std::vector<Due> due = take_due(transfers);
  if (due.empty()) return;
  make_room(tick);
  const NcclLibrary& nccl = group.library();
  const auto place = [](std::uint64_t* words, const Due& one) { return words + one.number % most; };
  for (const Due& one : due) {
    if (!one.transfer->sends) continue;
    CudaLibrary::check(cuda_.post(place(there_, one), label_of(*one.transfer), stream));
  }
  NcclTogether together(group);
  for (const Due& one : due) {
    std::uint64_t* const word = place(there_, one);
    const int peer = one.transfer->peer;
    group.check(one.transfer->sends ? nccl.send(word, 1, nccl::uint64, peer, group.comm(), stream)
                                    : nccl.recv(word, 1, nccl::uint64, peer, group.comm(), stream),
                "a message's label");
  }
  together.end("comparing messages", tick);
  for (const Due& one : due) {
    if (one.transfer->sends) continue;
    std::uint64_t* const heard = place(heard_, one);
    *heard = 0;
    CudaLibrary::check(cuda_.move(heard, place(there_, one), sizeof(std::uint64_t), stream));
    const std::lock_guard lock(mutex_);
    under_way_.push_back({one.number, *one.transfer});
  }
}

// Throws if it is not as expected.
bool NcclLabels::hears_of_the_oldest() {
  const auto [number, receive] = under_way_.front();
  const std::uint64_t heard = __atomic_load_n(heard_ + number % most, __ATOMIC_ACQUIRE);
  if (heard == 0) return false;
  if (heard != label_of(receive)) throw disagreement(receive.peer, envelope_of(heard), receive, rank_);
  under_way_.pop_front();
  return true;
}

void NcclLabels::check() {
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty() && hears_of_the_oldest()) {
  }
}

}  // namespace ringreduce
