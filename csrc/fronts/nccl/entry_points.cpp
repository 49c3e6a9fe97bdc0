// libnccl's functions: the library, communicators and groups.
#include <algorithm>

#include "fronts/nccl/calls.h"
#include "fronts/nccl/exported.h"
#include "gpu/device/library.h"

namespace ringreduce::nccl_api {

// Keeps this library from taking itself for NCCL.
extern "C" __attribute__((visibility("default"))) const int ringreduce_nccl = 1;

namespace {

// The version of NCCL that has these functions.
constexpr int version = 22800;

int current_device() {
  int device = 0;
  CudaLibrary::check(CudaLibrary::get().current_device(&device));
  return device;
}

nccl::Result join(Comm* comm, int ranks, const nccl::UniqueId& id, int rank, nccl::Config* config,
                  int device) {
  const nccl::Result result = result_of([&] {
    check_pointer(comm, "the pointer to the communicator");
    if (ranks < 1 || rank < 0 || rank >= ranks) {
      throw Refusal(nccl::invalid_argument, "the rank is " + std::to_string(rank) + ", but there are " +
                                                std::to_string(ranks) + " ranks");
    }
    *comm = Member::hand_out(std::make_unique<Member>(rank, ranks, device));
  });
  if (result != nccl::success) return spoil_group(result);
  // The caller's config may be gone when its group ends.
  const std::string kept = config ? std::string(reinterpret_cast<const char*>(config), config->size) : "";
  const nccl::Result joined = run(*comm, Phase::launches, [id, kept](Member& member) {
    std::string given = kept;
    member.join(read(id), given.empty() ? nullptr : reinterpret_cast<nccl::Config*>(given.data()));
  });
  if (joined != nccl::success) *comm = nullptr;
  return joined;
}

nccl::Result tell(Comm comm, int* to, const int Member::* fact, const char* what) {
  return result_of([&] {
    check_pointer(to, what);
    *to = Member::of(comm).*fact;
  });
}

}  // namespace

// --- the library -------------------------------------------------------------------------------------------

RINGREDUCE_NCCL(GetVersion, int* number) {
  return result_of([&] {
    check_pointer(number, "the pointer to the version");
    *number = version;
  });
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(nccl::Result result) {
  return in_words(result);
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Comm) {
  return last_error();
}

RINGREDUCE_NCCL(MemAlloc, void** memory, std::size_t bytes) {
  return result_of([&] {
    check_pointer(memory, "the pointer to the memory");
    CudaLibrary::check(CudaLibrary::get().allocate(memory, std::max<std::size_t>(bytes, 1)));
  });
}

RINGREDUCE_NCCL(MemFree, void* memory) {
  return result_of([&] {
    if (memory) CudaLibrary::check(CudaLibrary::get().free(memory));
  });
}

// --- communicators -----------------------------------------------------------------------------------------

RINGREDUCE_NCCL(GetUniqueId, nccl::UniqueId* id) {
  return result_of([&] {
    check_pointer(id, "the pointer to the unique id");
    *id = invite();
  });
}

RINGREDUCE_NCCL(CommInitRankConfig, Comm* comm, int ranks, nccl::UniqueId id, int rank,
                nccl::Config* config) {
  int device = 0;
  const nccl::Result result = result_of([&] { device = current_device(); });
  return result == nccl::success ? join(comm, ranks, id, rank, config, device) : spoil_group(result);
}

RINGREDUCE_NCCL(CommInitRank, Comm* comm, int ranks, nccl::UniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

// Meeting at one of several places is enough.
RINGREDUCE_NCCL(CommInitRankScalable, Comm* comm, int ranks, int rank, int ids, nccl::UniqueId* id,
                nccl::Config* config) {
  const nccl::Result result =
      result_of([&] { check_pointer(ids > 0 ? id : nullptr, "the list of unique ids"); });
  return result == nccl::success ? ncclCommInitRankConfig(comm, ranks, *id, rank, config)
                                 : spoil_group(result);
}

RINGREDUCE_NCCL(CommInitAll, Comm* comms, int devices, const int* device) {
  nccl::UniqueId id{};
  const nccl::Result result = result_of([&] {
    check_pointer(comms, "the list of communicators");
    if (devices < 1)
      throw Refusal(nccl::invalid_argument,
                    "the number of devices must be at least 1, not " + std::to_string(devices));
    id = invite();
  });
  if (result != nccl::success) return spoil_group(result);
  start_group();
  for (int rank = 0; rank < devices; ++rank) {
    join(&comms[rank], devices, id, rank, nullptr, device ? device[rank] : rank);
  }
  return end_group();
}

RINGREDUCE_NCCL(CommSplit, Comm comm, int color, int key, Comm* part, nccl::Config* config) {
  return run(comm, Phase::launches, [=](Member& member) {
    check_pointer(part, "the pointer to the communicator");
    auto made = member.split(color, key, config);
    *part = made ? Member::hand_out(std::move(made)) : nullptr;
  });
}

RINGREDUCE_NCCL(CommFinalize, Comm comm) {
  return run(comm, Phase::waits, [](Member& member) { member.finalize(); });
}

RINGREDUCE_NCCL(CommDestroy, Comm comm) {
  if (!comm) return nccl::success;
  return run(comm, Phase::waits, [](Member& member) { member.destroy(); });
}

RINGREDUCE_NCCL(CommAbort, Comm comm) {
  if (!comm) return nccl::success;
  return result_of([&] { Member::of(comm).abort(); });
}

RINGREDUCE_NCCL(CommGetAsyncError, Comm comm, nccl::Result* error) {
  return result_of([&] {
    check_pointer(error, "the pointer to the error");
    *error = Member::of(comm).async_error();
  });
}

RINGREDUCE_NCCL(CommCount, Comm comm, int* count) {
  return tell(comm, count, &Member::world, "the pointer to the number of ranks");
}

RINGREDUCE_NCCL(CommUserRank, Comm comm, int* rank) {
  return tell(comm, rank, &Member::rank, "the pointer to the rank");
}

RINGREDUCE_NCCL(CommCuDevice, Comm comm, int* device) {
  return tell(comm, device, &Member::device, "the pointer to the device");
}

// Not a collective. Kernels map memory without it, when it is first used.
RINGREDUCE_NCCL(CommRegister, Comm comm, void* memory, std::size_t bytes, void** handle) {
  return run(comm, Phase::launches, [=](Member& member) {
    check_pointer(handle, "the pointer to the handle");
    if (const Comm real = member.real()) {
      return check_real(call_real<nccl::CommRegister>("CommRegister", real, memory, bytes, handle));
    }
    *handle = memory;
  });
}

RINGREDUCE_NCCL(CommDeregister, Comm comm, void* handle) {
  return run(comm, Phase::launches, [=](Member& member) {
    const Comm real = member.real();
    if (real) check_real(call_real<nccl::CommDeregister>("CommDeregister", real, handle));
  });
}

// A window is known by its memory. NCCL also returns null if there is none.
RINGREDUCE_NCCL(CommWindowRegister, Comm comm, void* memory, std::size_t bytes, nccl::Window* window,
                int flags) {
  return run(comm, Phase::launches, [=](Member& member) {
    check_pointer(window, "the pointer to the window");
    *window = nullptr;
    if (const Comm real = member.real()) {
      return check_real(
          call_real<nccl::CommWindowRegister>("CommWindowRegister", real, memory, bytes, window, flags));
    }
    if ((flags & nccl::symmetric_window) == 0) return;
    member.use([&](Communicator& own) { own.device().register_memory(member.device, memory, bytes); });
    *window = reinterpret_cast<nccl::Window>(memory);
  });
}

RINGREDUCE_NCCL(CommWindowDeregister, Comm comm, nccl::Window window) {
  return run(comm, Phase::launches, [=](Member& member) {
    if (const Comm real = member.real()) {
      return check_real(call_real<nccl::CommWindowDeregister>("CommWindowDeregister", real, window));
    }
    if (!window) return;
    member.use([&](Communicator& own) { own.device().deregister_memory(member.device, window); });
  });
}

RINGREDUCE_NCCL(RedOpCreatePreMulSum, ReduceOp* op, void* scalar, DataType type, nccl::Residence residence,
                Comm comm) {
  return result_of([&] {
    check_pointer(op, "the pointer to the operator");
    Member& member = Member::of(comm);
    if (const Comm real = member.real()) {
      return check_real(NcclLibrary::get().create_premul_sum(op, scalar, type, residence, real));
    }
    *op = member.add(read_factor(scalar, type, residence));
  });
}

// Calls in the same group that have yet to run may use it.
RINGREDUCE_NCCL(RedOpDestroy, ReduceOp op, Comm comm) {
  return run(comm, Phase::waits, [=](Member& member) {
    if (const Comm real = member.real()) return check_real(NcclLibrary::get().destroy_op(op, real));
    member.remove(op);
  });
}

// --- groups ------------------------------------------------------------------------------------------------

RINGREDUCE_NCCL(GroupStart, ) {
  return start_group();
}

RINGREDUCE_NCCL(GroupEnd, ) {
  return end_group();
}

RINGREDUCE_NCCL(GroupSimulateEnd, void*) {
  return result_of([] {
    drop_group();
    throw Refusal(
        nccl::invalid_usage,
        "ncclGroupSimulateEnd has no estimate: it is of NCCL's own algorithms. The group has ended, "
        "and has run nothing");
  });
}

}  // namespace ringreduce::nccl_api
