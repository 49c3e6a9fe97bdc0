#include "gpu/kernels/buffers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

using device::Allocation;

// Per offer: an allocator may have mapped the array piece by piece.
constexpr int most_allocations = 64;
constexpr std::chrono::milliseconds look_every{20};
// How long a capture waits for peers to map its arrays, and a registration for room.
constexpr std::chrono::seconds patience{1};

}  // namespace

// Initially zero.
struct Buffers::Book {
  struct Offered {
    std::atomic<std::uint64_t> number;  // 0: empty. Written last
    std::int32_t count;
    char handles[most_allocations][device::handle_bytes];
  };
  struct Answer {
    std::atomic<std::uint64_t> place;  // 0: cannot be mapped
    std::atomic<std::uint64_t> number;
  };
  std::atomic<std::uint64_t> changes;
  Offered offered[most_offers];
  Answer answers[device::most_ranks][most_offers];  // to each rank's offers
};

Buffers::Buffers(const CudaLibrary& cuda, int device, int rank, int world)
    : cuda_(cuda),
      device_(device),
      rank_(rank),
      world_(world),
      books_(rank, world, sizeof(Book)),
      changes_seen_(static_cast<std::size_t>(world)) {}

// Offers remain, because kernels of peers that do not know of the end may still use them.
Buffers::~Buffers() {
  try {
    const OnDevice there(cuda_, device_);
    for (const Offer& offer : offers_) {
      if (offer.state == Offer::open) unshare(offer, offer.allocations.size());
    }
    for (int peer = 0; peer < world_; ++peer) {
      for (int i = 0; i < most_offers; ++i) unmap(peer, i);
    }
  } catch (const Error&) {  // a GPU that has failed has released everything
  }
}

Buffers::Book& Buffers::book(int rank) const {
  return *reinterpret_cast<Book*>(books_.of(rank));
}

// --- what this rank offers ---------------------------------------------------------------------------------

bool Buffers::find(const void* memory, std::size_t bytes, bool captured, Places& places) {
  std::array<Allocation, most_allocations> found;
  int count = most_allocations;
  if (cuda_.allocations(found.data(), &count, memory, bytes)) return false;
  Offer* const offer = offer_of({found.data(), static_cast<std::size_t>(count)});
  if (!offer) return false;
  offer->last_use = ++last_use_;
  for (const auto begun = Clock::now(); !is_ready(*offer);) {
    if (!captured || offer->state == Offer::refused || Clock::now() - begun > patience) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  offer->captured |= captured;
  tell(*offer, memory, places);
  return true;
}

void Buffers::tell(const Offer& offer, const void* memory, Places& places) const {
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(memory) - offer.allocations[0].at;
  for (int rank = 0; rank < world_; ++rank) places[rank] = offer.places[rank] + offset;
}

// If there is no room, the thread makes some.
Buffers::Offer& Buffers::offer_to_keep(const void* memory, std::size_t bytes) {
  for (const auto begun = Clock::now();; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const std::lock_guard lock(mutex_);
    std::array<Allocation, most_allocations> found;
    int count = most_allocations;
    CudaLibrary::check(cuda_.allocations(found.data(), &count, memory, bytes));
    Offer* const offer = offer_of({found.data(), static_cast<std::size_t>(count)});
    if (!offer && Clock::now() - begun > patience) {
      throw Error("the other ranks keep " + std::to_string(most_offers) +
                  " allocations of this rank mapped, and no more: deregister some");
    }
    if (!offer) continue;
    if (offer->state == Offer::refused) throw Error(offer->why);
    ++offer->kept;
    kept_[memory] = offer->number;
    return *offer;
  }
}

void Buffers::keep(const void* memory, std::size_t bytes, const Exchange& exchange, Places& places) {
  Offer* offer = nullptr;
  const auto all_do = [&](const auto& step) {
    exchange_or_fail(exchange, [&] {
      try {
        step();
      } catch (const Error& error) {
        throw Error(std::string("x cannot be shared with the other ranks: ") + error.what());
      }
      return std::string();
    });
  };
  try {
    all_do([&] { offer = &offer_to_keep(memory, bytes); });
    all_do([&] { map_offers(); });
    all_do([&] {
      const std::lock_guard lock(mutex_);
      if (!is_ready(*offer)) throw Error(offer->why);
      tell(*offer, memory, places);
    });
  } catch (...) {
    let_go(memory);
    throw;
  }
}

void Buffers::let_go(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto number = kept_.extract(memory);
  for (Offer& offer : offers_) {
    if (number && offer.number == number.mapped()) --offer.kept;
  }
}

Buffers::Offer* Buffers::offer_of(std::span<const Allocation> allocations) {
  Offer* room = nullptr;
  for (Offer& offer : offers_) {
    if (offer.state == Offer::none) {
      room = &offer;
    } else if (!std::ranges::search(offer.allocations, allocations).empty()) {
      return &offer;
    }
  }
  lacks_room_ |= !room;
  if (!room) return nullptr;
  room->allocations.assign(allocations.begin(), allocations.end());
  make(*room);
  return room;
}

void Buffers::make(Offer& offer) {
  Book::Offered& offered = book(rank_).offered[index_of(offer)];
  std::atomic_thread_fence(std::memory_order_release);  // it has said 0 before
  for (std::size_t i = 0; i < offer.allocations.size(); ++i) {
    const char* const failure =
        cuda_.share(offered.handles[i], reinterpret_cast<void*>(offer.allocations[i].at));
    if (!failure) continue;
    offer.why = failure;
    unshare(offer, i);
    offer.state = Offer::refused;
    return;
  }
  offered.count = static_cast<std::int32_t>(offer.allocations.size());
  offer.state = Offer::open;
  offer.number = ++last_number_;
  offered.number.store(offer.number, std::memory_order_release);
  book(rank_).changes.fetch_add(1, std::memory_order_release);
}

void Buffers::unshare(const Offer& offer, std::size_t count) {
  const Book::Offered& offered = book(rank_).offered[index_of(offer)];
  for (std::size_t i = 0; i < count; ++i) cuda_.unshare(offered.handles[i]);
}

bool Buffers::is_ready(Offer& offer) {
  if (offer.state != Offer::open) return offer.state == Offer::ready;
  bool all = true;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const Book::Answer& answer = book(peer).answers[rank_][index_of(offer)];
    if (answer.number.load(std::memory_order_acquire) != offer.number) return false;
    offer.places[peer] = answer.place.load(std::memory_order_relaxed);
    all = all && offer.places[peer] != 0;
  }
  offer.places[rank_] = offer.allocations[0].at;
  offer.state = all ? Offer::ready : Offer::refused;
  if (!all) offer.why = "another rank cannot map it";
  unshare(offer, offer.allocations.size());
  return all;
}

void Buffers::withdraw(Offer& offer) {
  const bool is_open = offer.state == Offer::open;
  book(rank_).offered[index_of(offer)].number.store(0, std::memory_order_relaxed);
  book(rank_).changes.fetch_add(1, std::memory_order_release);
  if (is_open) unshare(offer, offer.allocations.size());
  offer = Offer();
}

bool Buffers::is_gone(const Offer& offer) const {
  std::array<Allocation, most_allocations> found;
  int count = most_allocations;
  const Allocation& first = offer.allocations.front();
  const Allocation& last = offer.allocations.back();
  return cuda_.allocations(found.data(), &count, reinterpret_cast<void*>(first.at),
                           last.at + last.bytes - first.at) ||
         !std::equal(found.begin(), found.begin() + count, offer.allocations.begin(),
                     offer.allocations.end());
}

// Withdraws the offer that was not used for longest.
void Buffers::make_room() {
  Offer* oldest = nullptr;
  for (Offer& offer : offers_) {
    if (!offer.captured && offer.kept == 0 && (!oldest || offer.last_use < oldest->last_use)) oldest = &offer;
  }
  if (oldest) withdraw(*oldest);
  lacks_room_ = false;
}

// --- what others offer -------------------------------------------------------------------------------------

void Buffers::map_offers() {
  const std::lock_guard lock(mapping_);
  for (int peer = 0; peer < world_; ++peer) {
    if (peer != rank_) map_offers(peer);
  }
}

// An offer that changes while it is read is read again.
void Buffers::map_offers(int peer) {
  const std::uint64_t changes = book(peer).changes.load(std::memory_order_acquire);
  if (changes == changes_seen_[peer]) return;
  changes_seen_[peer] = changes;
  for (int i = 0; i < most_offers && !is_frozen_; ++i) {
    const Book::Offered& offered = book(peer).offered[i];
    Book::Answer& answer = book(rank_).answers[peer][i];
    const std::uint64_t number = offered.number.load(std::memory_order_acquire);
    if (number == answer.number.load(std::memory_order_relaxed)) continue;
    unmap(peer, i);
    const int count = std::clamp(offered.count, 1, most_allocations);
    std::vector<char> handles(count * device::handle_bytes);
    std::memcpy(handles.data(), offered.handles, handles.size());
    std::atomic_thread_fence(std::memory_order_acquire);
    if (offered.number.load(std::memory_order_relaxed) != number) continue;
    void* at = nullptr;
    if (number != 0 && cuda_.map(&at, handles.data(), count)) at = nullptr;
    answer.place.store(reinterpret_cast<std::uintptr_t>(at), std::memory_order_relaxed);
    answer.number.store(number, std::memory_order_release);
  }
}

void Buffers::unmap(int peer, int index) {
  std::atomic<std::uint64_t>& place = book(rank_).answers[peer][index].place;
  if (const auto at = place.exchange(0, std::memory_order_relaxed)) cuda_.unmap(reinterpret_cast<void*>(at));
}

void Buffers::start(std::function<bool()> is_idle) {
  is_idle_ = std::move(is_idle);
  thread_ = std::make_unique<Repeating>(look_every, [this] { look(); });
}

void Buffers::look() try {
  if (is_frozen_) return;
  const OnDevice there(cuda_, device_);
  map_offers();
  // The holder may wait for peers that do this.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  Offer& one = offers_[looks_++ % most_offers];
  // In this order: memory that is freed after the group is over stays mapped.
  if (one.state != Offer::none && is_gone(one) && !is_frozen_) withdraw(one);
  if (lacks_room_ && is_idle_()) make_room();
} catch (const Error&) {  // the GPU has failed, or is gone at the process's end
}

}  // namespace ringreduce
