// Functions of libnccl that only NCCL itself serves. They exist so that programs with them start.
#include "fronts/nccl/exported.h"

namespace ringreduce::nccl_api {
namespace {

// NCCL's communicator, for a function that only NCCL has.
Comm nccl_of(const Member& member, const char* name) {
  if (const Comm real = member.real()) return real;
  throw Refusal(nccl::invalid_usage, std::string("nccl") + name +
                                         " is available from the installed NCCL only: set "
                                         "RINGREDUCE_GPU_TRANSPORT=nccl to leave communicators to it");
}

template <class... Arguments>
nccl::Result only_real(const char* name, Comm comm, Arguments... arguments) {
  return run(comm, Phase::launches, [=](Member& member) {
    check_real(call_real<nccl::Result(Comm, Arguments...)>(name, nccl_of(member, name), arguments...));
  });
}

template <class... Arguments>
nccl::Result of_window(const char* name, nccl::Window window, Arguments... arguments) {
  return result_of([&] {
    check_pointer(window, "the window");
    check_real(call_real<nccl::Result(nccl::Window, Arguments...)>(name, window, arguments...));
  });
}

}  // namespace

RINGREDUCE_NCCL(CommShrink, Comm comm, int* excluded, int count, Comm* part, nccl::Config* config,
                int flags) {
  return run(comm, Phase::launches, [=](Member& member) {
    check_pointer(part, "the pointer to the communicator");
    Comm made = nullptr;
    check_real(call_real<nccl::CommShrink>("CommShrink", nccl_of(member, "CommShrink"), excluded, count,
                                           &made, config, flags));
    *part = Member::hand_out(Member::adopt(made, member.device));
  });
}

RINGREDUCE_NCCL(CommRevoke, Comm comm, int flags) {
  return only_real("CommRevoke", comm, flags);
}

RINGREDUCE_NCCL(CommSuspend, Comm comm, int flags) {
  return only_real("CommSuspend", comm, flags);
}

RINGREDUCE_NCCL(CommResume, Comm comm) {
  return only_real("CommResume", comm);
}

RINGREDUCE_NCCL(CommMemStats, Comm comm, int which, std::uint64_t* value) {
  return only_real("CommMemStats", comm, which, value);
}

RINGREDUCE_NCCL(CommQueryProperties, Comm comm, void* properties) {
  return only_real("CommQueryProperties", comm, properties);
}

RINGREDUCE_NCCL(DevCommCreate, Comm comm, const void* requirements, void* made) {
  return only_real("DevCommCreate", comm, requirements, made);
}

RINGREDUCE_NCCL(DevCommDestroy, Comm comm, const void* made) {
  return only_real("DevCommDestroy", comm, made);
}

RINGREDUCE_NCCL(WinGetUserPtr, Comm comm, nccl::Window window, void** memory) {
  return only_real("WinGetUserPtr", comm, window, memory);
}

// --- signals -----------------------------------------------------------------------------------------------

RINGREDUCE_NCCL(PutSignal, const void* from, std::size_t count, DataType type, int peer, nccl::Window window,
                std::size_t offset, int signal, int context, unsigned flags, Comm comm, Stream stream) {
  return run(comm, Phase::launches, [=](Member& member) {
    using Function = nccl::Result(const void*, std::size_t, DataType, int, nccl::Window, std::size_t, int,
                                  int, unsigned, Comm, Stream);
    check_real(call_real<Function>("PutSignal", from, count, type, peer, window, offset, signal, context,
                                   flags, nccl_of(member, "PutSignal"), stream));
  });
}

RINGREDUCE_NCCL(Signal, int peer, int signal, int context, unsigned flags, Comm comm, Stream stream) {
  return run(comm, Phase::launches, [=](Member& member) {
    using Function = nccl::Result(int, int, int, unsigned, Comm, Stream);
    const Comm real = nccl_of(member, "Signal");
    check_real(call_real<Function>("Signal", peer, signal, context, flags, real, stream));
  });
}

RINGREDUCE_NCCL(WaitSignal, int count, void* signals, Comm comm, Stream stream) {
  return run(comm, Phase::waits, [=](Member& member) {
    using Function = nccl::Result(int, void*, Comm, Stream);
    check_real(call_real<Function>("WaitSignal", count, signals, nccl_of(member, "WaitSignal"), stream));
  });
}

// --- windows: all that are not null are NCCL's -------------------------------------------------------------

RINGREDUCE_NCCL(GetLsaDevicePointer, nccl::Window window, std::size_t offset, int peer, void** found) {
  return of_window("GetLsaDevicePointer", window, offset, peer, found);
}

RINGREDUCE_NCCL(GetPeerDevicePointer, nccl::Window window, std::size_t offset, int peer, void** found) {
  return of_window("GetPeerDevicePointer", window, offset, peer, found);
}

RINGREDUCE_NCCL(GetLsaMultimemDevicePointer, nccl::Window window, std::size_t offset, void** found) {
  return of_window("GetLsaMultimemDevicePointer", window, offset, found);
}

}  // namespace ringreduce::nccl_api
