// Device memory that other processes of the host are to reach: by CUDA's IPC handles where the device has
// them, else by a fabric's handles, else by files. The latter two are of the driver's virtual memory.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "reduce/cuda/errors.h"
#include "reduce/cuda/failures.h"
#include "transport/device/cuda/driver.h"
#include "transport/device/cuda/entry_points.h"
#include "transport/device/cuda/file_passing.h"
#include "transport/device/cuda/virtual_memory.h"

namespace ringreduce::device {
namespace {

enum class Kind : std::int32_t { ipc, fabric, file };

// Plain bytes, and no gaps.
struct Handle {
  std::uint64_t bytes;
  Kind kind;
  PassedFile file;
  std::int32_t unused;
  char opaque[64];  // cudaIpcMemHandle_t, CUmemFabricHandle
};
static_assert(sizeof(Handle) == handle_bytes);
static_assert(sizeof(cudaIpcMemHandle_t) == 64 && sizeof(CUmemFabricHandle) == 64);

// What was made or mapped here, by address; all else is CUDA's runtime's.
struct Entry {
  VirtualMemory memory;
  int file = -1;
};
std::mutex mutex;
std::map<const void*, Entry> entries;

std::optional<Entry> entry_at(const void* memory) {
  const std::lock_guard lock(mutex);
  const auto found = entries.find(memory);
  if (found == entries.end()) return std::nullopt;
  return found->second;
}

void* keep(const Entry& entry) {
  const std::lock_guard lock(mutex);
  entries[entry.memory.at] = entry;
  return entry.memory.at;
}

// False: it is not of this kind.
bool give_back_entry(const void* memory) {
  const auto entry = entry_at(memory);
  if (!entry) return false;
  {
    const std::lock_guard lock(mutex);
    entries.erase(memory);
  }
  if (entry->file >= 0) close(entry->file);
  give_back(entry->memory);
  return true;
}

bool has_ipc() {
  int device = 0, has = 0;
  check(cudaGetDevice(&device), "memory");
  check(cudaDeviceGetAttribute(&has, cudaDevAttrIpcEventSupport, device), "memory");
  return has != 0;
}

std::optional<Kind> wanted() {
  const char* const set = std::getenv("RINGREDUCE_CUDA_HANDLES");
  const std::string_view value = set ? set : "";
  if (value.empty() || value == "auto") return std::nullopt;
  if (value == "ipc") return Kind::ipc;
  if (value == "fabric") return Kind::fabric;
  if (value == "file") return Kind::file;
  throw std::runtime_error("RINGREDUCE_CUDA_HANDLES must be auto, ipc, fabric or file, not '" +
                           std::string(value) + "'");
}

HandleType type_of(Kind kind) {
  return kind == Kind::fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

// Of what the device has, the first that memory can be made with: a fabric's handles also need leave of its
// manager.
std::optional<VirtualMemory> made_for_others(std::size_t bytes) {
  for (const Kind kind : {Kind::fabric, Kind::file}) {
    try {
      if (has_handles(type_of(kind))) return make(bytes, type_of(kind));
    } catch (const std::runtime_error&) {
      if (kind == Kind::file) throw;
    }
  }
  return std::nullopt;
}

int export_file(const VirtualMemory& memory) {
  int file = -1;
  const Driver& driver = Driver::get();
  driver.check(driver.export_handle(&file, memory.allocation, memory.type, 0), "sharing memory");
  return file;
}

Handle handle_of(void* memory) {
  Handle handle{};
  const auto entry = entry_at(memory);
  if (!entry) {
    cudaIpcMemHandle_t shared;
    check(cudaIpcGetMemHandle(&shared, memory), "sharing memory");
    handle.kind = Kind::ipc;
    std::memcpy(handle.opaque, &shared, sizeof shared);
    return handle;
  }
  handle.bytes = entry->memory.bytes;
  if (entry->memory.type == CU_MEM_HANDLE_TYPE_FABRIC) {
    handle.kind = Kind::fabric;
    const Driver& driver = Driver::get();
    driver.check(driver.export_handle(handle.opaque, entry->memory.allocation, entry->memory.type, 0),
                 "sharing memory");
    return handle;
  }
  handle.kind = Kind::file;
  // It stays open as long as the memory is there: others take it when they come to that.
  const int file = entry->file >= 0 ? entry->file : export_file(entry->memory);
  keep({entry->memory, file});
  handle.file = passed(file);
  return handle;
}

void* map_file(const Handle& handle) {
  const int file = take(handle.file);
  try {
    const VirtualMemory memory = import_from(reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                             handle.bytes, type_of(handle.kind));
    close(file);
    return keep({memory});
  } catch (...) {
    close(file);
    throw;
  }
}

// Of the current device. RINGREDUCE_CUDA_HANDLES (ipc, fabric, file) chooses another kind than the first that
// the device has.
void* allocate(std::size_t bytes) {
  const auto kind = wanted();
  if (kind && *kind != Kind::ipc) {
    if (!has_handles(type_of(*kind)))
      throw std::runtime_error("RINGREDUCE_CUDA_HANDLES: this GPU has none of that kind");
    return keep({make(bytes, type_of(*kind))});
  }
  if (!kind && !has_ipc()) {
    if (const auto memory = made_for_others(bytes)) return keep({*memory});
  }
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "memory");
  return memory;
}

void* map(const char* bytes) {
  Handle handle;
  std::memcpy(&handle, bytes, sizeof handle);
  if (handle.kind == Kind::file) return map_file(handle);
  if (handle.kind == Kind::fabric) {
    return keep({import_from(handle.opaque, handle.bytes, type_of(handle.kind))});
  }
  cudaIpcMemHandle_t shared;
  std::memcpy(&shared, handle.opaque, sizeof shared);
  void* memory = nullptr;
  check(cudaIpcOpenMemHandle(&memory, shared, cudaIpcMemLazyEnablePeerAccess), "mapping shared memory");
  return memory;
}

}  // namespace
}  // namespace ringreduce::device

using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes) {
  return failure_of([&] { *memory = allocate(bytes); });
}

const char* ringreduce_cuda_free(void* memory) {
  return failure_of([&] {
    if (!give_back_entry(memory)) check(cudaFree(memory), "memory");
  });
}

const char* ringreduce_cuda_share(char* handle, void* memory) {
  return failure_of([&] {
    const Handle made = handle_of(memory);
    std::memcpy(handle, &made, sizeof made);
  });
}

const char* ringreduce_cuda_map(void** memory, const char* handle) {
  return failure_of([&] { *memory = ringreduce::device::map(handle); });
}

const char* ringreduce_cuda_unmap(void* memory) {
  return failure_of([&] {
    if (!give_back_entry(memory)) check(cudaIpcCloseMemHandle(memory), "shared memory");
  });
}
