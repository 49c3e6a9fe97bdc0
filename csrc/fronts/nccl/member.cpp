#include "fronts/nccl/member.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string_view>

#include "fronts/nccl/real.h"
#include "gpu/device/library.h"
#include "gpu/kernels/cuda/flat_program.h"
#include "transport/compose/choose.h"
#include "transport/interface/environment.h"
#include "transport/interface/exchange.h"
#include "transport/tcp/addresses.h"

namespace ringreduce::nccl_api {
namespace {

// NCCL has no such limit. A program that has one aborts the communicator.
constexpr std::chrono::hours as_long_as_it_takes{24};

struct Card {
  HostIdentity host;
  std::uint64_t label;  // of RINGREDUCE_HOST, which sets ranks of one host apart
  std::int32_t wants_nccl;
};

std::string wanted() {
  return environment("RINGREDUCE_GPU_TRANSPORT");
}

Card own_card() {
  return {this_host(), std::hash<std::string>()(environment("RINGREDUCE_HOST")), wanted() == "nccl"};
}

bool have_several_hosts(const std::vector<Card>& cards) {
  return std::any_of(cards.begin(), cards.end(), [&](const Card& card) {
    return card.host != cards[0].host || card.label != cards[0].label;
  });
}

bool want_nccl(const std::vector<Card>& cards) {
  return std::any_of(cards.begin(), cards.end(), [](const Card& card) { return card.wants_nccl != 0; });
}

// The reason why NCCL is preferred, the same on all ranks; empty if there is none.
std::string why_nccl(const std::vector<Card>& cards) {
  if (want_nccl(cards)) return "RINGREDUCE_GPU_TRANSPORT is nccl";
  if (have_several_hosts(cards)) return "its ranks are on several hosts";
  if (cards.size() <= device::most_ranks) return "";
  return "its kernels serve at most " + std::to_string(device::most_ranks) + " ranks";
}

// The thread blocks that a program's config asks for, in place of a communicator's usual ones. It may be of
// an older version, which had no such fields.
GpuOptions wanted_by(const nccl::Config* config, GpuOptions otherwise) {
  if (!config || config->size < offsetof(nccl::Config, net_name)) return otherwise;
  const auto blocks = [](const char* name, int given) {
    if (given == nccl::unset || given > 0) return std::max(given, 0);
    throw Refusal(nccl::invalid_argument,
                  std::string(name) + " must be at least 1, not " + std::to_string(given));
  };
  const int least = blocks("minCTAs", config->min_ctas), most = blocks("maxCTAs", config->max_ctas);
  if (most > 0 && least > most) {
    throw Refusal(nccl::invalid_argument,
                  "minCTAs is " + std::to_string(least) + ", but maxCTAs is " + std::to_string(most));
  }
  if (least > 0) otherwise.min_blocks = least;
  if (most > 0) otherwise.max_blocks = most;
  int policy = nccl::unset;
  if (config->size >= nccl::cta_policy_at + sizeof policy) {
    std::memcpy(&policy, reinterpret_cast<const char*>(config) + nccl::cta_policy_at, sizeof policy);
  }
  if (policy != nccl::unset) otherwise.copy_engine = (policy & nccl::cta_policy_zero) != 0;
  return otherwise;
}

// Runs `step` on all ranks. Returns the problem of the first rank that failed, or nothing.
template <class Step>
std::string first_problem(Seat& seat, Step step) {
  std::string own;
  try {
    step();
  } catch (const Error& error) {
    own = error.what();
    if (own.empty()) own = "unknown error";
  }
  const std::vector<std::string> all = seat.exchange(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return "rank " + std::to_string(rank) + ": " + all[rank];
  }
  return {};
}

}  // namespace

// --- handles -----------------------------------------------------------------------------------------------

Member& Member::of(nccl::Comm handle) {
  auto* const member = reinterpret_cast<Member*>(handle);
  if (!member) throw Refusal(nccl::invalid_argument, "the communicator is null");
  if (reinterpret_cast<std::uintptr_t>(member) % alignof(Member) != 0 || member->mark_ != known) {
    throw Refusal(nccl::invalid_argument, "the communicator was not created by this library");
  }
  if (member->state_ == State::ended) {
    throw Refusal(nccl::invalid_argument, member->name() + "the communicator was destroyed or aborted");
  }
  return *member;
}

nccl::Comm Member::hand_out(std::unique_ptr<Member> member) {
  member->mark_ = known;
  return reinterpret_cast<nccl::Comm>(member.release());
}

std::string Member::name() const {
  return "rank " + std::to_string(rank) + " of " + std::to_string(world) + ": ";
}

void Member::check_usable() const {
  if (state_ == State::ready) return;
  throw Refusal(nccl::invalid_usage, state_ <= State::joining ? "its ranks have not met yet"
                                     : state_ == State::finalized
                                         ? "the communicator was finalized"
                                         : "the communicator was destroyed or aborted");
}

nccl::Comm Member::real() const {
  check_usable();
  return real_;
}

// --- meeting -----------------------------------------------------------------------------------------------

void Member::join(const Invitation& invitation, nccl::Config* config) {
  state_ = State::joining;
  try {
    meet(invitation, config);
    state_ = State::ready;
  } catch (...) {
    state_ = State::unmet;
    throw;
  }
}

// Kernels serve the ranks if they can, then NCCL, and then the CPU.
void Member::meet(const Invitation& invitation, nccl::Config* config) {
  const GpuOptions gpu = wanted_by(config, {});
  Seat seat(invitation, rank, world);
  const Exchange exchange = [&](const std::string& blob) { return seat.exchange(blob); };
  const auto problem_with = [&](const char* transport) {
    return first_problem(seat, [&] {
      Options options;
      options.timeout = as_long_as_it_takes;
      options.gpu = gpu;
      serve(std::make_unique<Communicator>(connect_transport(rank, world, exchange, transport), options));
    });
  };
  const auto cards = exchange_values(exchange, world, own_card());
  std::string why = why_nccl(cards);
  const bool by_kernels = why.empty();
  if (by_kernels) why = problem_with("shm");
  if (why.empty()) return;
  own_.reset();
  nccl::UniqueId id{};
  const std::string absent = first_problem(seat, [&] {
    if (wanted() == "cuda") throw Error("RINGREDUCE_GPU_TRANSPORT is cuda");
    const NcclLibrary& library = NcclLibrary::get();
    if (rank == 0) check_real(library.get_unique_id(&id));
  });
  if (absent.empty()) return join_by_nccl(seat, id, config);
  if (!by_kernels && !want_nccl(cards)) {
    const std::string problem = problem_with(have_several_hosts(cards) ? "" : "shm");
    if (problem.empty()) return;
    own_.reset();
    why += ", and through the CPU: " + problem;
  }
  throw Refusal(nccl::invalid_usage, "this library cannot serve the communicator (" + why +
                                         "), and the installed NCCL is not available: " + absent);
}

void Member::serve(std::unique_ptr<Communicator> communicator) {
  communicator->device().prepare(device);
  own_ = std::move(communicator);
}

void Member::join_by_nccl(Seat& seat, nccl::UniqueId id, nccl::Config* config) {
  const std::string first = seat.exchange(bytes_of(id)).at(0);
  std::memcpy(&id, first.data(), std::min(first.size(), sizeof id));
  const OnDevice there(CudaLibrary::get(), device);
  check_real(config ? NcclLibrary::get().init(&real_, world, id, rank, config)
                    : real_function<nccl::CommInitRank>("CommInitRank")(&real_, world, id, rank));
}

std::unique_ptr<Member> Member::split(int color, int key, nccl::Config* config) {
  if (const nccl::Comm whole = real()) {
    nccl::Comm part = nullptr;
    check_real(real_function<nccl::CommSplit>("CommSplit")(whole, color, key, &part, config));
    return part ? adopt(part, device) : nullptr;
  }
  std::unique_ptr<Communicator> made;
  use([&](Communicator& own) {
    made = own.split(std::max(color, -1), key, wanted_by(config, own.options().gpu));
  });
  if (!made) return nullptr;
  auto member = std::make_unique<Member>(made->rank(), made->size(), device);
  member->serve(std::move(made));
  member->state_ = State::ready;
  return member;
}

std::unique_ptr<Member> Member::adopt(nccl::Comm real, int device) {
  int rank = 0, world = 0;
  check_real(real_function<nccl::CommUserRank>("CommUserRank")(real, &rank));
  check_real(real_function<nccl::CommCount>("CommCount")(real, &world));
  auto member = std::make_unique<Member>(rank, world, device);
  member->real_ = real;
  member->state_ = State::ready;
  return member;
}

// --- the end -----------------------------------------------------------------------------------------------

// Nothing can be ended while the ranks meet in another thread.
void Member::check_met(const std::string& whose) const {
  if (state_ == State::joining) throw Refusal(nccl::invalid_usage, whose + "its ranks have not met yet");
}

nccl::Result Member::async_error() {
  if (real_) {
    nccl::Result found = nccl::success;
    check_real(NcclLibrary::get().get_async_error(real_, &found));
    return found;
  }
  const std::shared_lock lock(in_use_);
  if (state_ == State::joining) return nccl::in_progress;
  if (state_ == State::unmet) return nccl::invalid_usage;
  if (state_ != State::ready) return nccl::success;
  try {
    own_->usable();
    return nccl::success;
  } catch (...) {
    return failed(std::current_exception(), name());
  }
}

void Member::finalize() {
  if (const nccl::Comm theirs = real()) {
    check_real(NcclLibrary::get().finalize(theirs));
  } else {
    use([](Communicator& own) { own.close(); });
  }
  state_ = State::finalized;
}

void Member::destroy() {
  check_met("");
  if (real_) {
    check_real(NcclLibrary::get().destroy(real_));
  } else if (own_) {
    own_->close();
  }
  end();
}

void Member::abort() {
  check_met(name());
  if (real_) {
    check_real(NcclLibrary::get().abort(real_));
  } else if (own_) {
    own_->leave();
  }
  end();
}

// Calls of other threads end first.
void Member::end() {
  state_ = State::ended;
  const std::unique_lock lock(in_use_);
  own_.reset();
}

// --- operators ---------------------------------------------------------------------------------------------

nccl::ReduceOp Member::add(const Factor& factor) {
  const std::lock_guard lock(factors_mutex_);
  factors_[next_factor_] = factor;
  return static_cast<nccl::ReduceOp>(next_factor_++);
}

Member::Factor Member::factor(nccl::ReduceOp op) const {
  const std::lock_guard lock(factors_mutex_);
  const auto found = factors_.find(op);
  if (found != factors_.end()) return found->second;
  throw Refusal(nccl::invalid_argument, "unknown operator " + std::to_string(static_cast<unsigned>(op)));
}

void Member::remove(nccl::ReduceOp op) {
  factor(op);
  const std::lock_guard lock(factors_mutex_);
  factors_.erase(op);
}

}  // namespace ringreduce::nccl_api
