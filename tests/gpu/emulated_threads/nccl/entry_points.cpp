// What libnccl exports, as far as it is used, and what tests ask for.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "../library/handles.h"
#include "communicators.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace ringreduce::emulated {
namespace {

using namespace nccl;

thread_local std::string last_error;

struct Queued {
  std::shared_ptr<Communicator> communicator;
  void* stream;
  Operation operation;
};
thread_local int depth = 0;
thread_local std::vector<Queued> queued;

// Never destroyed: streams' threads may outlive main.
Handles<Communicator>& communicators() {
  static auto* const made = new Handles<Communicator>("communicator");
  return *made;
}
std::atomic<int> alive{0}, registered{0};
std::atomic<int> failing_rank{-1};

std::mutex all_mutex;
std::vector<std::weak_ptr<Communicator>> all;

template <class Do>
Result result_of(Do what) {
  try {
    return what();
  } catch (const std::exception& error) {
    last_error = error.what();
    return invalid_usage;
  }
}

// All that was queued, communicator by communicator.
Result launch_queued() {
  std::vector<Queued> rest = std::exchange(queued, {});
  Result result = success;
  while (!rest.empty()) {
    const auto communicator = rest.front().communicator;
    void* const stream = rest.front().stream;
    std::vector<Operation> operations;
    std::vector<Queued> others;
    for (Queued& one : rest) {
      if (one.communicator != communicator) {
        others.push_back(std::move(one));
      } else if (one.stream != stream) {
        throw std::invalid_argument("a group of several streams is not emulated");
      } else {
        operations.push_back(std::move(one.operation));
      }
    }
    const Result launched = communicator->launch(std::move(operations), stream);
    if (communicator->when_done(launched) == in_progress) result = in_progress;
    rest = std::move(others);
  }
  return result;
}

Result end_group() {
  if (depth == 0) throw std::logic_error("no group has begun");
  return --depth == 0 ? launch_queued() : success;
}

Result queue(Operation::Kind kind, const void* from, void* to, std::size_t count, DataType type, ReduceOp op,
             int peer, Comm comm, Stream stream) {
  return result_of([&] {
    const auto communicator = communicators().at(comm);
    queued.push_back({communicator,
                      stream,
                      {kind, static_cast<const char*>(from), static_cast<char*>(to), count, type, op, peer,
                       communicator->factor(op)}});
    ++depth;
    return end_group();
  });
}

std::shared_ptr<Communicator> join(Comm* comm, int ranks, const UniqueId& id, int rank) {
  if (rank == failing_rank) throw std::runtime_error("rank " + std::to_string(rank) + " is told to fail");
  auto made = std::make_shared<Communicator>(clique_of({id.internal, sizeof id.internal}, ranks), rank);
  *comm = static_cast<Comm>(communicators().add(made));
  ++alive;
  const std::lock_guard lock(all_mutex);
  all.push_back(made);
  return made;
}

Result remove(Comm comm, bool is_over) {
  return result_of([&] {
    if (is_over && !communicators().at(comm)->blocks) communicators().at(comm)->check_over();
    go_back_to_device();
    const auto communicator = communicators().remove(comm);
    communicator->clique().abort(communicator->rank());
    --alive;
    return success;
  });
}

}  // namespace
}  // namespace ringreduce::emulated

using namespace ringreduce::nccl;      // NOLINT(google-build-using-namespace)
using namespace ringreduce::emulated;  // NOLINT(google-build-using-namespace)
using Kind = Operation::Kind;

EXPORT Result ncclGetVersion(int* version) {
  const char* const told = std::getenv("RINGREDUCE_EMULATED_NCCL_VERSION");
  *version = told ? std::atoi(told) : 22800;
  return success;
}

EXPORT const char* ncclGetErrorString(Result result) {
  return result == remote_error ? "remote error" : result == invalid_usage ? "invalid usage" : "some error";
}

EXPORT const char* ncclGetLastError(Comm) {
  return last_error.c_str();
}

EXPORT Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> next{0};
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "emulated %d", next++);
  return success;
}

EXPORT Result ncclCommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) {
  return result_of([&] {
    const Config expected;
    if (config->magic != expected.magic || config->size < expected.size || config->blocking != 0) {
      throw std::invalid_argument("the configuration is none, or blocks");
    }
    join(comm, ranks, id, rank);
    return in_progress;
  });
}

EXPORT Result ncclCommInitRank(Comm* comm, int ranks, UniqueId id, int rank) {
  return result_of([&] {
    const auto made = join(comm, ranks, id, rank);
    made->blocks = true;
    return made->when_done(in_progress);
  });
}

EXPORT Result ncclCommGetAsyncError(Comm comm, Result* error) {
  return result_of([&] {
    *error = communicators().at(comm)->state();
    return success;
  });
}

EXPORT Result ncclCommFinalize(Comm comm) {
  return result_of([&] {
    const auto communicator = communicators().at(comm);
    return communicator->when_done(communicator->finalize());
  });
}

EXPORT Result ncclCommDestroy(Comm comm) {
  return remove(comm, true);
}

EXPORT Result ncclCommAbort(Comm comm) {
  return remove(comm, false);
}

EXPORT Result ncclCommRegister(Comm comm, void* memory, std::size_t bytes, void** handle) {
  return result_of([&] {
    *handle = communicators().at(comm)->add_memory(memory, bytes);
    ++registered;
    return success;
  });
}

EXPORT Result ncclCommDeregister(Comm comm, void* handle) {
  return result_of([&] {
    communicators().at(comm)->remove_memory(handle);
    --registered;
    return success;
  });
}

EXPORT Result ncclGroupStart() {
  ++depth;
  return success;
}

EXPORT Result ncclGroupEnd() {
  return result_of(end_group);
}

EXPORT Result ncclSend(const void* from, std::size_t count, DataType type, int peer, Comm comm,
                       Stream stream) {
  return queue(Kind::send, from, nullptr, count, type, sum, peer, comm, stream);
}

EXPORT Result ncclRecv(void* to, std::size_t count, DataType type, int peer, Comm comm, Stream stream) {
  return queue(Kind::receive, nullptr, to, count, type, sum, peer, comm, stream);
}

EXPORT Result ncclAllReduce(const void* from, void* to, std::size_t count, DataType type, ReduceOp op,
                            Comm comm, Stream stream) {
  return queue(Kind::all_reduce, from, to, count, type, op, 0, comm, stream);
}

EXPORT Result ncclReduceScatter(const void* from, void* to, std::size_t count, DataType type, ReduceOp op,
                                Comm comm, Stream stream) {
  return queue(Kind::reduce_scatter, from, to, count, type, op, 0, comm, stream);
}

EXPORT Result ncclAllGather(const void* from, void* to, std::size_t count, DataType type, Comm comm,
                            Stream stream) {
  return queue(Kind::all_gather, from, to, count, type, sum, 0, comm, stream);
}

EXPORT Result ncclBroadcast(const void* from, void* to, std::size_t count, DataType type, int root, Comm comm,
                            Stream stream) {
  return queue(Kind::broadcast, from, to, count, type, sum, root, comm, stream);
}

EXPORT Result ncclReduce(const void* from, void* to, std::size_t count, DataType type, ReduceOp op, int root,
                         Comm comm, Stream stream) {
  return queue(Kind::reduce, from, to, count, type, op, root, comm, stream);
}

EXPORT Result ncclRedOpCreatePreMulSum(ReduceOp* op, void* scalar, DataType type, Residence residence,
                                       Comm comm) {
  return result_of([&] {
    if (residence != in_host_memory) throw std::invalid_argument("scalars of devices are not emulated");
    *op = communicators().at(comm)->add_factor(scalar, type);
    return success;
  });
}

EXPORT Result ncclRedOpDestroy(ReduceOp op, Comm comm) {
  return result_of([&] {
    communicators().at(comm)->remove_factor(op);
    return success;
  });
}

// --- for tests ---------------------------------------------------------------------------------------------

// The rank's communicators meet with an asynchronous error; what they have on streams stays there.
EXPORT void ringreduce_emulated_nccl_fail(int rank, int result) {
  const std::lock_guard lock(all_mutex);
  for (const auto& one : all) {
    const auto communicator = one.lock();
    if (communicator && communicator->rank() == rank) {
      communicator->clique().fail(rank, static_cast<Result>(result));
    }
  }
}

// From now on the rank's communicators cannot be made; -1: all can.
EXPORT void ringreduce_emulated_nccl_refuse(int rank) {
  failing_rank = rank;
}

EXPORT int ringreduce_emulated_nccl_alive() {
  return alive;
}

EXPORT int ringreduce_emulated_nccl_registered() {
  return registered;
}
