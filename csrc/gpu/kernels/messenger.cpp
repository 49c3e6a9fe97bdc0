#include "gpu/kernels/messenger.h"

#include <algorithm>

#include "gpu/kernels/kernel_library.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

std::uint64_t heard(const std::uint64_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

bool same_pair(const Transfer& a, const Transfer& b) {
  return a.peer == b.peer && a.sends == b.sends;
}

}  // namespace

KernelMessenger::KernelMessenger(int rank, int world, int device, int priority, const DeviceBoxes& boxes,
                                 device::Report& report)
    : cuda_(CudaLibrary::get()),
      rank_(rank),
      world_(world),
      device_(device),
      priority_(priority),
      boxes_(boxes),
      report_(report) {
  for (auto& pairs : pairs_) {
    for (int peer = 0; peer < world; ++peer) pairs.push_back({new_event(cuda_, device), {}, {}, {}});
  }
}

// --- launching -------------------------------------------------------------------------------------------

void KernelMessenger::launch(std::span<const Transfer> transfers, const Launch& launch) {
  std::vector<Transfer> sorted(transfers.begin(), transfers.end());
  const auto place = [](const Transfer& one) { return std::pair(one.sends, one.peer); };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Transfer& a, const Transfer& b) { return place(a) < place(b); });
  boxes_.claim(launch.stream);
  const std::lock_guard lock(mutex_);
  for (std::span<const Transfer> rest = sorted; !rest.empty();) {
    const auto some = rest.first(std::min<std::size_t>(rest.size(), device::most_messages));
    launch_some(some, launch);
    rest = rest.subspan(some.size());
  }
}

void KernelMessenger::launch_some(std::span<const Transfer> sorted, const Launch& launch) {
  device::Messages errand{};
  errand.rank = rank_;
  errand.boxes = boxes_.layout();
  errand.report = &report_;
  for (int rank = 0; rank < world_; ++rank) errand.memories[rank] = boxes_.memory(rank);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Transfer& transfer = sorted[i];
    Pair& pair = pair_of(transfer);
    if (i == 0 || !same_pair(sorted[i - 1], transfer)) {
      errand.begins[errand.pairs++] = static_cast<std::uint8_t>(i);
      if (!launch.captured && pair.stream && *pair.stream != launch.stream) {
        CudaLibrary::check(cuda_.wait(pair.event.get(), launch.stream));
      }
    }
    errand.messages[i] = {label_of(transfer), static_cast<char*>(transfer.data), transfer.bytes(),
                          transfer.peer, transfer.sends ? 1 : 0};
    pair.last = transfer;
  }
  errand.begins[errand.pairs] = static_cast<std::uint8_t>(sorted.size());
  CudaLibrary::check(KernelLibrary::get().carry(&errand, launch.stream));
  for (int p = 0; p < errand.pairs && !launch.captured; ++p) {
    Pair& pair = pair_of(sorted[errand.begins[p]]);
    CudaLibrary::check(cuda_.record(pair.event.get(), launch.stream));
    pair.stream = launch.stream;
  }
}

void* KernelMessenger::stream_for(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  CudaHandle& own = pair_of(transfer).own_stream;
  if (!own) own = new_stream(cuda_, device_, priority_);
  return own.get();
}

// --- what has become of them -----------------------------------------------------------------------------

std::uint64_t KernelMessenger::sum(const Counts& counts) const {
  std::uint64_t sum = 0;
  for (const auto& of_direction : counts) {
    for (int peer = 0; peer < world_; ++peer) {
      for (const std::uint64_t& lane : of_direction[peer]) sum += heard(lane);
    }
  }
  return sum;
}

bool KernelMessenger::is_idle() {
  const std::lock_guard lock(mutex_);
  const OnDevice there(cuda_, device_);
  for (const auto& pairs : pairs_) {
    for (const Pair& pair : pairs) {
      int over = 1;
      if (pair.stream) CudaLibrary::check(cuda_.is_over(&over, pair.event.get()));
      if (!over) return false;
    }
  }
  return true;
}

void KernelMessenger::let_wait(void* stream) {
  const std::lock_guard lock(mutex_);
  for (const auto& pairs : pairs_) {
    for (const Pair& pair : pairs) {
      if (pair.stream) CudaLibrary::check(cuda_.wait(pair.event.get(), stream));
    }
  }
}

void KernelMessenger::check() {
  const auto peer = static_cast<int>(heard(report_.wrong_peer)) - 1;
  if (peer < 0) return;
  const Envelope expected = envelope_of(heard(report_.expected_label));
  Transfer receive;
  receive.sends = false;
  receive.peer = peer;
  receive.dtype = expected.dtype;
  receive.count = expected.count;
  throw disagreement(peer, envelope_of(heard(report_.wrong_label)), receive, rank_);
}

std::optional<Transfer> KernelMessenger::waiting() {
  const std::lock_guard lock(mutex_);
  for (int sends = 0; sends < 2; ++sends) {
    for (int peer = 0; peer < world_; ++peer) {
      for (int lane = 0; lane < boxes_.layout().lanes; ++lane) {
        if (heard(report_.messages_begun[sends][peer][lane]) !=
            heard(report_.messages_ended[sends][peer][lane])) {
          return pairs_[static_cast<std::size_t>(sends)][static_cast<std::size_t>(peer)].last;
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace ringreduce
