#include "fronts/torch/backend.h"

#include <ATen/ops/from_blob.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "fronts/torch/gil.h"
#include "fronts/torch/meeting.h"

namespace ringreduce::torch_backend {
namespace {

// The groups that this process has not left. Never destroyed: threads may outlive static objects.
struct Live {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> groups;

  void add(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock(mutex);
    std::erase_if(groups, [](const auto& one) { return one.expired(); });
    groups.push_back(group);
  }
};

Live& live() {
  static auto* const all = new Live();
  return *all;
}

std::shared_ptr<Group> connect(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                               const Settings& settings) {
  Group::Settings engines;
  engines.timeout = settings.timeout;
  engines.reproducible = settings.reproducible;
  engines.gpu = settings.gpu;
  engines.members.assign(settings.ranks.begin(), settings.ranks.end());
  return translated(settings.ranks, [&] {
    StoreMeeting meeting(store, rank, size, settings.timeout);
    auto group = std::make_shared<Group>(rank, size, meeting, engines);
    meeting.leave(*group);
    live().add(group);
    return group;
  });
}

// If ranks have their own numbers as names, no legend is needed.
GlobalRanks without_identity(GlobalRanks ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] != r) return ranks;
  }
  return {};
}

GlobalRanks picked(const GlobalRanks& from, const std::vector<int>& ranks) {
  GlobalRanks global;
  for (const int r : ranks) global.push_back(from.empty() ? static_cast<std::uint64_t>(r) : from[r]);
  return global;
}

const std::string merging = "ringreduce/merge";

struct SharedAllocator : public c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes > 0 ? allocate_shared(bytes) : nullptr;
    return {memory, memory, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static void free(void* memory) {
    if (memory) free_shared(memory);
  }
};

}  // namespace

void leave_all_groups(bool at_once) {
  std::vector<std::weak_ptr<Group>> groups;
  {
    const std::lock_guard lock(live().mutex);
    groups.swap(live().groups);
  }
  std::exception_ptr problem;
  for (const auto& one : groups) {
    try {
      const auto group = one.lock();
      if (group) at_once ? group->leave() : group->close();
    } catch (...) {
      problem = std::current_exception();
      at_once = true;  // interrupted, for example
    }
  }
  if (problem) std::rethrow_exception(as_torch(problem, {}));
}

RingBackend::RingBackend(intrusive_ptr<c10d::Store> store, int rank, int size, Settings settings)
    : Versioned(rank, size),
      all_store_(std::move(store)),
      store_(all_store_),
      ranks_(std::make_shared<const GlobalRanks>(without_identity(std::move(settings.ranks)))),
      name_(std::move(settings.name)),
      reproducible_(settings.reproducible),
      gpu_(settings.gpu),
      timeout_(bounded(settings.timeout)),
      group_(settings.connected
                 ? connect(store_, rank, size, {timeout_.load(), *ranks_, settings.reproducible, true, gpu_})
                 : nullptr) {}

// Running operations end before other members are destroyed. A thread that ends one may need the GIL.
RingBackend::~RingBackend() {
  const WithoutGilIfHeld unlocked;
  group_.reset();
}

intrusive_ptr<RingBackend::Options> RingBackend::getBackendOptions() {
  return c10::make_intrusive<RingOptions>(name_, timeout_.load(), reproducible_, gpu_);
}

// --- running
// -------------------------------------------------------------------------------------------------

intrusive_ptr<RingWork> RingBackend::new_work(const Operation& operation, const Tensors& inputs,
                                              std::vector<Tensors> outputs, int peer) {
  const std::uint64_t number = operation.is_message() ? ++transfers_ : ++sequence_;
  return c10::make_intrusive<RingWork>(
      RingWork::About{rank_, operation.type, title_if_asked(operation.title, name_), number, ranks_, group_,
                      operation.timeout, extra_, peer},
      inputs, std::move(outputs));
}

template <typename Run>
void RingBackend::run_here(const intrusive_ptr<RingWork>& work, Run run) {
  try {
    run();
  } catch (const Trouble& trouble) {
    const auto problem = as_torch(std::current_exception(), *ranks_);
    work->end(problem, -1);
    failed_by(trouble);
    std::rethrow_exception(problem);
  }
  work->end(nullptr, -1);
  completed(*work);
}

void RingBackend::hand_over(const intrusive_ptr<RingWork>& work, const Submit& submit) {
  try {
    submit([this, work](const std::exception_ptr& problem, int source) {
      work->end(problem, source);
      if (!problem) return completed(*work);
      try {
        std::rethrow_exception(problem);
      } catch (const Trouble& trouble) {
        failed_by(trouble);
      } catch (...) {
        failed(false);
      }
    });
  } catch (const Trouble&) {
    const auto problem = as_torch(std::current_exception(), *ranks_);
    work->end(problem, -1);
    std::rethrow_exception(problem);
  }
}

// Tells the hooks, unless the group still works, or this rank itself has left it.
void RingBackend::failed_by(const Trouble& trouble) {
  if (trouble.outcome == Outcome::refused || trouble.outcome == Outcome::closed) return;
  failed(trouble.outcome == Outcome::timeout);
}

void RingBackend::collect(const intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalesced_.push_back(work);
}

intrusive_ptr<c10d::Work> RingBackend::launch(const Operation& operation, std::unique_ptr<TensorCalls> calls,
                                              const Tensors& inputs, std::vector<Tensors> outputs) {
  const StaysAtEnd here;
  if (const auto gpu = gpu_of(operation.title, inputs, outputs)) {
    return launch_on(*gpu, operation, *calls, inputs, std::move(outputs));
  }
  const Call* single = calls->single();
  if (operation.asynchronous || coalescing_ || !single) {
    return launch(operation, std::unique_ptr<Steps>(std::move(calls)), inputs, std::move(outputs));
  }
  const auto work = new_work(operation, inputs, std::move(outputs));
  run_here(work, [&] { group().run(*single); });
  return work;
}

intrusive_ptr<c10d::Work> RingBackend::launch(const Operation& operation, std::unique_ptr<Steps> steps,
                                              const Tensors& inputs, std::vector<Tensors> outputs) {
  const StaysAtEnd here;
  const auto work = new_work(operation, inputs, std::move(outputs));
  if (operation.asynchronous || coalescing_) {
    hand_over(work, [&](auto completion) { group().submit(std::move(steps), std::move(completion)); });
    collect(work);
  } else {
    run_here(work, [&] { group().run(*steps); });
  }
  return work;
}

void RingBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = true;
  coalesced_.clear();  // an error may have kept torch from ending the last one
  coalesced_messages_.clear();
  refused_message_ = nullptr;
}

intrusive_ptr<c10d::Work> RingBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_ = false;
  if (refused_message_) std::rethrow_exception(std::exchange(refused_message_, nullptr));
  const auto messages = std::exchange(coalesced_messages_, {});
  if (!messages.empty()) coalesced_.push_back(carry(messages));
  return c10::make_intrusive<CoalescedWork>(rank_, std::exchange(coalesced_, {}));
}

// --- other groups
// --------------------------------------------------------------------------------------------

intrusive_ptr<c10d::Backend> RingBackend::derived(const std::string& prefix,
                                                  const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  GlobalRanks ranks, const intrusive_ptr<Options>& options) {
  const StaysAtEnd here;
  // Called once for each type of device, with the same store: one group serves all.
  const std::lock_guard lock(derived_mutex_);
  if (derived_ && derived_->prefix == prefix && derived_->store.lock() == store) {
    if (auto made = derived_->made.lock()) return made;
  }
  const bool within = prefix != merging;
  std::string where = prefix;
  if (within) where.append("/").append(std::to_string(++times_derived_[prefix]));
  const auto* own = dynamic_cast<const RingOptions*>(options.get());
  const auto made = c10::make_intrusive<RingBackend>(
      c10::make_intrusive<c10d::PrefixStore>(where, within ? store_ : store), rank, size,
      Settings{options ? options->timeout : timeout_.load(), std::move(ranks),
               own ? own->reproducible : reproducible_, true, own ? own->gpu : gpu_, name_});
  if (bound_device_) made->eagerConnectSingleDevice(*bound_device_);
  ++splits_;
  derived_.emplace(
      Derived{prefix, c10::weak_intrusive_ptr<c10d::Store>(store), c10::weak_intrusive_ptr<Backend>(made)});
  return made;
}

intrusive_ptr<c10d::Backend> RingBackend::split(const intrusive_ptr<c10d::Store>& store,
                                                const std::vector<int>& ranks,
                                                const intrusive_ptr<Options>& options) {
  const auto me = std::find(ranks.begin(), ranks.end(), rank_);
  if (me == ranks.end()) return nullptr;
  // Not in that store: its prefix counts the groups of a rank, of which other ranks may have fewer.
  std::string members = "ringreduce/split";
  for (const int r : ranks) members.append("/").append(std::to_string(r));
  return derived(members, store, static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()),
                 picked(*ranks_, ranks), options);
}

intrusive_ptr<c10d::Backend> RingBackend::merge(const intrusive_ptr<c10d::Store>& store,
                                                const intrusive_ptr<Options>& options, const int& rank,
                                                const int& size) {
  return derived(merging, store, rank, size, options ? global_ranks(*options) : GlobalRanks(), options);
}

intrusive_ptr<c10d::Backend> RingBackend::shrink(const std::vector<std::int64_t>& without, int flags,
                                                 const intrusive_ptr<Options>& options) {
  constexpr int abort_first = 1;  // torch.distributed's SHRINK_ABORT
  std::vector<int> left;
  for (int r = 0; r < size_; ++r) {
    if (std::find(without.begin(), without.end(), r) == without.end()) left.push_back(r);
  }
  const auto me = std::find(left.begin(), left.end(), rank_);
  TORCH_CHECK(me != left.end(), "ringreduce: rank ", rank_, " is one of the ranks that shrink() excludes");
  if (flags & abort_first) abort();
  return derived("ringreduce/shrink/" + std::to_string(++shrunk_), store_,
                 static_cast<int>(me - left.begin()), static_cast<int>(left.size()), picked(*ranks_, left),
                 options);
}

void RingBackend::eagerConnectSingleDevice(at::Device device) {
  const StaysAtEnd here;
  const WithoutGilIfHeld unlocked;
  bound_device_ = device;
  if (!device.is_cpu()) translated(*ranks_, [&] { group().prepare(device.index()); });
}

void RingBackend::registerTensor(const at::Tensor& tensor) {
  check_dense("register()", tensor);
  TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous(),
              "ringreduce: register() takes a contiguous tensor on a GPU");
  const StaysAtEnd here;
  const WithoutGilIfHeld unlocked;
  translated(*ranks_, [&] {
    group().register_memory(tensor.device().index(), tensor.mutable_data_ptr(), tensor.nbytes());
  });
}

void RingBackend::deregisterTensor(const at::Tensor& tensor) {
  const StaysAtEnd here;
  const WithoutGilIfHeld unlocked;
  translated(*ranks_, [&] { group().deregister_memory(tensor.device().index(), tensor.mutable_data_ptr()); });
}

void RingBackend::shutdown() {
  const StaysAtEnd here;
  const WithoutGilIfHeld unlocked;
  if (group_) translated(*ranks_, [&] { group_->close(); });
}

void RingBackend::abort() {
  const StaysAtEnd here;
  const WithoutGilIfHeld unlocked;
  if (group_) group_->leave();
}

void RingBackend::regroup(const std::string& prefix, int rank, int size,
                          std::optional<Milliseconds> timeout) {
  const StaysAtEnd here;
  abort();
  const WithoutGilIfHeld unlocked;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, all_store_);
  group_ =
      connect(store, rank, size, {bounded(timeout.value_or(timeout_.load())), {}, reproducible_, true, gpu_});
  store_ = store;
  ranks_ = std::make_shared<const GlobalRanks>();
  sequence_ = transfers_ = monitored_ = shrunk_ = 0;
}

Group& RingBackend::group() const {
  TORCH_CHECK(group_, "ringreduce: this process group has no ranks before reconfigure()");
  return *group_;
}

// --- memory
// --------------------------------------------------------------------------------------------------

std::shared_ptr<c10::Allocator> RingBackend::getMemAllocator() {
  return std::make_shared<SharedAllocator>();
}

at::Tensor RingBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(size >= 0, "ringreduce: allocate_tensor takes a number of elements, not ", size);
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  if (options.device().is_cuda()) return at::empty({size}, options);
  if (bytes == 0) return at::empty({size}, options.device(at::kCPU));
  return at::from_blob(
      allocate_shared(bytes), {size}, [](void* memory) { free_shared(memory); }, options.device(at::kCPU));
}

}  // namespace ringreduce::torch_backend
