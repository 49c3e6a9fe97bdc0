// How a group of ranks begins and ends to use a fabric.
#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>
#include <utility>

#include "transport/interface/environment.h"
#include "transport/interface/exchange.h"
#include "transport/interface/thread.h"
#include "transport/ofi/ofi.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t longest_whole = 16 << 10;  // bytes: a copy costs less than another message
// Small frames that the provider receives while nobody looks; with their tails they fill a MiB.
constexpr int slots = 63;
constexpr std::size_t most_rails = 64;
constexpr milliseconds neighbours_have{500};  // to answer when the ranks meet
constexpr milliseconds at_rest{1500}, to_hear{50}, to_hand_over{100}, bulk_may_end{100};

// What must be the same on all ranks.
std::string words_about(const ofi::Device& device) {
  return device.provider() + " (address format " + std::to_string(device.format()) +
         (device.reads() ? ", with" : ", without") + " remote reads)";
}

void check_that_it_registers(ofi::Device& device) {
  alignas(64) static std::byte some[4096];
  if (!device.needs_descriptions() || device.registered(some, sizeof some)) return;
  throw Error("provider " + device.provider() + " of libfabric registers no memory: " +
              device.why_not_registered() + " (ulimit -l limits what may be locked)");
}

// How ranks' providers differ; empty if they do not.
std::string difference(const std::vector<std::string>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    return "all ranks must use the same provider of libfabric in the same way: it is " + all[0] +
           " on rank 0, " + all[r] + " on rank " + std::to_string(r) +
           " (RINGREDUCE_OFI_PROVIDER, RINGREDUCE_OFI_DOMAIN and RINGREDUCE_OFI_RMA choose)";
  }
  return "";
}

}  // namespace

// --- the beginning ---------------------------------------------------------------------------------------

ofi::Wish OfiTransport::wish_by_environment() {
  ofi::Wish wish{
      environment("RINGREDUCE_OFI_PROVIDER"), {}, environment("RINGREDUCE_OFI_RMA", {"auto", "0", "1"})};
  std::istringstream names(environment("RINGREDUCE_OFI_DOMAIN"));
  for (std::string name; std::getline(names, name, ',');) wish.domains.push_back(name);
  return wish;
}

// What must be the same on all ranks, and, in the last byte, the number of rails.
std::string OfiTransport::opened(const ofi::Wish& wish, Rails& rails) {
  const SignalsBlocked blocked;  // in the threads of providers
  const HandlersKept kept;       // libpsm2 and libpsm_infinipath, which it loads, exit after Ctrl-C
  const ofi::Library& library = ofi::Library::get();
  std::vector<ofi::Found> found = ofi::find(library, wish);
  found.resize(std::min(found.size(), most_rails));
  for (const ofi::Found& one : found) {
    auto device = std::make_unique<ofi::Device>(library, one);
    check_that_it_registers(*device);
    auto regions = std::make_unique<ofi::Regions>(*device);
    rails.push_back({std::move(device), std::move(regions)});
  }
  return words_about(*rails[0].device) + static_cast<char>(rails.size());
}

// What all ranks have opened. They use as many rails as the rank with the fewest.
std::string OfiTransport::disagreement(std::vector<std::string> all, Rails& rails) {
  for (std::string& text : all) {
    rails.resize(std::min(rails.size(), static_cast<std::size_t>(text.back())));
    text.pop_back();
  }
  return difference(all);
}

std::unique_ptr<OfiTransport> OfiTransport::create(int rank, int world, const Exchange& exchange,
                                                   const ofi::Wish& wish) {
  Rails rails;
  const auto all = exchange_or_fail(exchange, [&] { return opened(wish, rails); });
  if (const std::string problem = disagreement(all, rails); !problem.empty()) throw InvalidArgument(problem);
  return create_with(std::move(rails), rank, world, exchange, wish);
}

std::unique_ptr<OfiTransport> OfiTransport::create_if_faster(int rank, int world, const Exchange& exchange,
                                                             ofi::Wish wish, std::string& why_not) {
  wish.must_be_faster = true;
  Rails rails;
  try {
    why_not = disagreement(exchange_or_fail(exchange, [&] { return opened(wish, rails); }), rails);
  } catch (const Failure&) {
    throw;
  } catch (const Error& error) {
    why_not = error.what();
  }
  if (!why_not.empty()) return nullptr;
  return create_with(std::move(rails), rank, world, exchange, wish);
}

std::unique_ptr<OfiTransport> OfiTransport::create_with(Rails rails, int rank, int world,
                                                        const Exchange& exchange, const ofi::Wish& wish) {
  std::unique_ptr<OfiTransport> transport(
      new OfiTransport(rank, world, meet(rank, world, exchange, false), wish, std::move(rails)));
  transport->start();
  transport->greet_neighbours();
  return transport;
}

OfiTransport::OfiTransport(int rank, int world, Settings settings, const ofi::Wish& wish, Rails rails)
    : TcpTransport("ofi", rank, world, std::move(settings)),
      wish_(wish),
      slot_bytes_(std::min(longest_whole, rails[0].device->longest_message() - sizeof(Tail))),
      peers_(static_cast<std::size_t>(world)),
      rails_(std::move(rails)),
      device_(rails_[0].device.get()),
      regions_(rails_[0].regions.get()) {
  facts_.exchanges = exchanges;
  // Only where it takes the place of sockets, which nobody has chosen for the arrays either.
  facts_.for_devices = wish.must_be_faster;
  fabric = "messages go through provider " + device_->provider() + " of libfabric " +
           ofi::Library::get().release();
  for (const Rail& rail : rails_) fabric += ", domain " + rail.device->domain() + ", " + rail.device->card();
  fabric += device_->reads() ? "; ranks read large messages where they are"
                             : "; large messages are sent, without remote reads";
  const Lock lock(mutex_);
  for (const Rail& rail : rails_) {
    if (rail.device->descriptor() >= 0) watch(rail.device->descriptor());
  }
  open_slots();
}

// Those that must be registered are one region, which stays in use.
void OfiTransport::open_slots() {
  const std::size_t each = (slot_bytes_ + sizeof(Tail) + 63) / 64 * 64;
  if (device_->needs_descriptions()) {
    arena_ = pool_.take(slots * each);
    of_arena_ = regions_->of(*arena_);
    for (int i = 0; i < slots; ++i) in_arena_.push_back({arena_->data + i * each, each, 1});
  }
  for (int i = 0; i < slots; ++i) {
    Operation& operation = begin(Operation::Kind::slot, -1);
    operation.buffer = arena_ ? &in_arena_[i] : pool_.take(slot_bytes_ + sizeof(Tail));
    receive(operation);
  }
}

// A provider may connect at the first message, and needs both ends for that.
void OfiTransport::greet_neighbours() {
  if (world < 2) return;
  Lock lock(mutex_);
  const int neighbours[] = {(rank + 1) % world, (rank + world - 1) % world};
  for (const int peer : neighbours) {
    if (connected(peer) && !peers_[peer].greeted) greet(peer);
  }
  const auto met = [&](int peer) { return !connected(peer) || peers_[peer].heard; };
  const auto until = Clock::now() + neighbours_have;
  while (!(std::all_of(std::begin(neighbours), std::end(neighbours), met) && unsent() == 0) &&
         Clock::now() < until) {
    progress(lock, milliseconds(1));
  }
}

// --- the callers' memory ---------------------------------------------------------------------------------

// Of messages to a peer that takes no more.
void OfiTransport::drop_waiting(int peer) {
  drop_offers(peer);
  for (const Waiting& dropped : std::exchange(peers_[peer].waiting, {})) frames_.written(peer, dropped.frame);
}

// A failed group sends no more messages. Closing the endpoint is the only way to take memory back from the
// provider.
void OfiTransport::withdraw() {
  TcpTransport::withdraw();
  if (!device_) return;
  if (fate().has_failed()) return shut();
  let_go_of_lent();
  const auto deadline = Clock::now() + to_hand_over;
  while (uses_callers_memory() && Clock::now() < deadline) look();
  if (uses_callers_memory()) shut();
}

// A peer that has received a header waits for the bytes.
void OfiTransport::let_go_of_lent() {
  for (int peer = 0; peer < world; ++peer) {
    std::erase_if(peers_[peer].waiting, [&](Waiting& one) {
      if (one.bulk == 0) return frames_.drop(peer, one.frame);
      if (!one.frame.is_lent()) return false;
      one.frame.buffer = pool_.take(one.frame.header.bytes);
      std::memcpy(one.frame.buffer->data, one.frame.data, one.frame.header.bytes);
      one.frame.data = one.frame.buffer->data;
      return false;
    });
  }
}

bool OfiTransport::uses_callers_memory() const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [](const auto& one) { return one->busy && one->uses_callers_memory(); });
}

// The provider moves the bytes of a large message.
bool OfiTransport::is_amid_bulk() const {
  return std::any_of(operations_.begin(), operations_.end(), [&](const auto& one) {
    const bool receives = one->kind == Operation::Kind::bulk;
    const bool sends =
        one->kind == Operation::Kind::send && one->frame && one->frame->header.bytes > slot_bytes_;
    return one->busy && (receives || sends);
  });
}

// --- the end ---------------------------------------------------------------------------------------------

// Frames that have not left yet, to peers that can be reached.
std::size_t OfiTransport::unsent() const {
  std::size_t count = 0;
  for (const auto& one : operations_) {
    const bool sends = one->kind == Operation::Kind::send || one->kind == Operation::Kind::offer;
    count += one->busy && sends && !control_.has_left(one->peer);
  }
  for (int peer = 0; peer < world; ++peer) {
    if (!control_.has_left(peer)) count += peers_[peer].waiting.size();
  }
  return count;
}

bool OfiTransport::all_have_left() const {
  for (int peer = 0; peer < world; ++peer) {
    if (peers_[peer].is_known() && !control_.has_left(peer)) return false;
  }
  return true;
}

// A provider may drop what has left but has not been received, if its endpoint closes. Ranks that close wait
// a little for each other.
void OfiTransport::see_off(Lock& lock) {
  auto moved = Clock::now();
  for (std::size_t left = unsent(); device_ && left > 0 && Clock::now() - moved < at_rest;) {
    progress(lock, milliseconds(2));
    const std::size_t before = std::exchange(left, unsent());
    if (left != before) moved = Clock::now();
  }
  TcpTransport::see_off(lock);
  const auto start = Clock::now();
  while (device_ && !all_have_left() && Clock::now() - start < to_hear) progress(lock, milliseconds(1));
  shut();
}

// Large messages end before the endpoint closes, if the provider needs that: receives that have not begun are
// cancelled, and what has begun is waited for. Nobody gets the bytes.
void OfiTransport::end_bulk() {
  if (device_->closes_at_any_time()) return;
  for (Operation* late : std::exchange(late_, {})) abandon(*late);
  for (const auto& one : operations_) {
    const bool receives = one->kind == Operation::Kind::bulk && one->number == 0;
    if (one->busy && receives) rails_[one->rail].device->cancel(one.get());
  }
  const auto until = Clock::now() + bulk_may_end;
  while (is_amid_bulk() && Clock::now() < until) {
    for (const Rail& rail : rails_) {
      ofi::Completion completion{};
      ofi::FailedCompletion failure;
      std::string why;
      const int count = rail.device->completions(&completion, 1);
      if (count < 0 && rail.device->failed(failure, why)) completion.context = failure.context;
      if (count != 0 && completion.context) abandon(*static_cast<Operation*>(completion.context));
    }
  }
}

// Gives back what an operation has that is over, whatever came of it.
void OfiTransport::abandon(Operation& operation) {
  const bool in_arena = arena_ && operation.kind == Operation::Kind::slot;
  if (operation.buffer && !in_arena) pool_.release(operation.buffer);
  if (operation.landing.buffer) pool_.release(operation.landing.buffer);
  if (operation.frame) frames_.written(operation.peer, *operation.frame);
  end(operation);
}

// What the provider was doing is over.
void OfiTransport::shut() {
  try {
    if (device_) end_bulk();
  } catch (const Error&) {  // the provider's, which closes in any case
  }
  for (const auto& one : operations_) one->region.reset();
  of_arena_.reset();
  for (const Rail& rail : rails_) counted_.registrations += rail.regions->registrations();
  rails_.clear();
  regions_ = nullptr;
  device_ = nullptr;
  for (int peer = 0; peer < world; ++peer) drop_waiting(peer);
  for (const auto& one : operations_) {
    if (one->busy) abandon(*one);
  }
  if (arena_) pool_.release(std::exchange(arena_, nullptr));
  late_.clear();
  in_trouble_ = false;  // a peer that has closed its endpoint as well may live
}

// In the child of a fork, the endpoint and what is registered are the parent's.
OfiTransport::~OfiTransport() {
  if (disowned_) {
    for (auto& one : operations_) static_cast<void>(one.release());
    operations_.clear();
    static_cast<void>(new (std::nothrow) ofi::Regions::User(std::move(of_arena_)));
    static_cast<void>(new (std::nothrow) Rails(std::exchange(rails_, {})));
    device_ = nullptr;
  }
  close();
}

}  // namespace ringreduce
