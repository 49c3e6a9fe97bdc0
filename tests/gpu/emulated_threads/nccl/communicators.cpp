#include "communicators.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>

namespace ringreduce::emulated {
namespace {

int looks_that_it_takes() {
  const char* const told = std::getenv("RINGREDUCE_EMULATED_NCCL_LOOKS");
  return told ? std::atoi(told) : 2;
}

using Put = const char* (*)(void*, void (*)(void*), void*, void (*)(void*));

// Of the emulated CUDA library, which whoever calls us has loaded.
template <class Function>
Function find(const char* name) {
  const char* const path = std::getenv("RINGREDUCE_CUDA_LIBRARY");
  void* const library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) throw std::runtime_error("the emulated CUDA library is not there");
  return reinterpret_cast<Function>(found);
}

struct Job {
  std::shared_ptr<Clique> clique;
  int rank;
  std::vector<Operation> operations;
  std::shared_ptr<char> counted;
};

}  // namespace

std::shared_ptr<Clique> clique_of(const std::string& id, int world) {
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::pair<int, std::shared_ptr<Clique>>>;
  const std::lock_guard lock(mutex);
  auto& [size, clique] = (*known)[id];
  if (!clique) {
    size = world;
    clique = std::make_shared<Clique>(world);
  }
  if (size != world) throw std::invalid_argument("the ranks differ about their number");
  return clique;
}

void go_back_to_device() {
  int device = 0;
  find<const char* (*)(int*)>("ringreduce_cuda_current_device")(&device);
  find<const char* (*)(int)>("ringreduce_cuda_choose_device")(device);
}

Communicator::Communicator(std::shared_ptr<Clique> clique, int rank)
    : clique_(std::move(clique)), rank_(rank), alive_(std::make_shared<char>()) {
  clique_->join();
}

nccl::Result Communicator::when_done(nccl::Result result) {
  while (blocks && result == nccl::in_progress) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result = state();
  }
  return result;
}

nccl::Result Communicator::launch(std::vector<Operation> operations, void* stream) {
  const std::lock_guard lock(mutex_);
  if (waiting_) throw std::logic_error("the group before is not on its stream yet");
  if (finalized_) throw std::logic_error("it is finalized");
  auto group = std::make_unique<Group>(Group{std::move(operations), stream});
  if (++groups_ % 3 != 1) {
    put(std::move(*group));
    return nccl::success;
  }
  waiting_ = std::move(group);
  looks_ = 0;
  return nccl::in_progress;
}

void Communicator::put(Group group) {
  static const Put put_into = find<Put>("ringreduce_emulated_put");
  auto* const job = new Job{clique_, rank_, std::move(group.operations), alive_};
  const auto run = [](void* argument) {
    const Job& to_do = *static_cast<Job*>(argument);
    to_do.clique->run(to_do.rank, to_do.operations);
  };
  const auto drop = [](void* argument) { delete static_cast<Job*>(argument); };
  if (const char* failure = put_into(group.stream, run, job, drop)) throw std::runtime_error(failure);
}

nccl::Result Communicator::state() {
  if (const nccl::Result failure = clique_->failure(rank_); failure != nccl::success) return failure;
  if (!clique_->is_complete()) return nccl::in_progress;
  const std::lock_guard lock(mutex_);
  if (finalized_ && alive_.use_count() > 1) return nccl::in_progress;
  if (!waiting_ && !finalized_) return nccl::success;
  if (++looks_ < looks_that_it_takes()) return nccl::in_progress;
  if (waiting_) put(std::move(*std::exchange(waiting_, nullptr)));
  return nccl::success;
}

nccl::Result Communicator::finalize() {
  const std::lock_guard lock(mutex_);
  if (!memory_.empty()) throw std::logic_error("memory is still registered");
  if (!factors_.empty()) throw std::logic_error("operators are still there");
  finalized_ = true;
  looks_ = 0;
  return nccl::in_progress;
}

void Communicator::check_over() {
  const std::lock_guard lock(mutex_);
  if (!finalized_) throw std::logic_error("it is not finalized");
}

nccl::ReduceOp Communicator::add_factor(const void* scalar, nccl::DataType type) {
  const std::lock_guard lock(mutex_);
  const auto* const bytes = static_cast<const char*>(scalar);
  unsigned number = nccl::avg + 1;
  while (factors_.count(number) != 0) ++number;
  factors_[number].assign(bytes, bytes + size_of(type));
  return static_cast<nccl::ReduceOp>(number);
}

void Communicator::remove_factor(nccl::ReduceOp op) {
  const std::lock_guard lock(mutex_);
  if (waiting_) throw std::logic_error("the group before may need the operator");
  if (factors_.erase(op) == 0) throw std::invalid_argument("there is no such operator");
}

std::vector<char> Communicator::factor(nccl::ReduceOp op) {
  if (op <= nccl::avg) return {};
  const std::lock_guard lock(mutex_);
  return factors_.at(op);
}

void* Communicator::add_memory(void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_[memory] = bytes;
  return memory;
}

void Communicator::remove_memory(void* handle) {
  const std::lock_guard lock(mutex_);
  if (memory_.erase(handle) == 0) throw std::invalid_argument("there is no such memory");
}

}  // namespace ringreduce::emulated
