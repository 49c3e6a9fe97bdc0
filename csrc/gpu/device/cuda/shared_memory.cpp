// Device memory that other processes of the host can reach: through CUDA's IPC handles if the device has
// them, otherwise through fabric handles, otherwise through files. The latter two use the driver's virtual
// memory.
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
#include <vector>

#include "gpu/device/cuda/driver.h"
#include "gpu/device/cuda/entry_points.h"
#include "gpu/device/cuda/file_passing.h"
#include "gpu/device/cuda/virtual_memory.h"
#include "gpu/reduce/errors.h"
#include "gpu/reduce/failures.h"
#include "transport/interface/descriptor.h"

namespace ringreduce::device {
namespace {

enum class Kind : std::int32_t { ipc, fabric, file };

// Plain bytes without gaps.
struct Handle {
  std::uint64_t bytes;
  Kind kind;
  PassedFile file;
  std::int32_t unused;
  char opaque[64];  // cudaIpcMemHandle_t, CUmemFabricHandle
};
static_assert(sizeof(Handle) == handle_bytes);
static_assert(sizeof(cudaIpcMemHandle_t) == 64 && sizeof(CUmemFabricHandle) == 64);

// What was made or mapped here, by address; everything else belongs to CUDA's runtime.
std::mutex mutex;
std::map<const void*, VirtualMemory> kept;

void* keep(VirtualMemory memory) {
  const std::lock_guard lock(mutex);
  void* const at = reinterpret_cast<void*>(memory.at);
  kept[at] = std::move(memory);
  return at;
}

// False if it is not of this kind.
bool give_back_kept(const void* memory) {
  std::unique_lock lock(mutex);
  const auto entry = kept.extract(memory);
  lock.unlock();
  if (entry) give_back(entry.mapped());
  return !entry.empty();
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

// The first kind of the device that memory can be made with: fabric handles also need a permission from the
// fabric's manager.
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

// 0 if the memory has none.
std::uint64_t attribute_of(CUdeviceptr memory, CUpointer_attribute asked) {
  const Driver& driver = Driver::get();
  std::uint64_t value = 0;  // wide enough for a boolean of any driver
  void* const answer = &value;
  driver.check(driver.attributes_of(1, &asked, const_cast<void**>(&answer), memory), "looking up memory");
  return value;
}

Allocation range_around(CUdeviceptr memory) {
  const Driver& driver = Driver::get();
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  driver.check(driver.address_range(&at, &bytes, memory), "looking up memory");
  return {at, bytes, 0};
}

// Throws if the memory was not made for sharing.
void share_virtual_memory(Handle& handle, void* memory) {
  const Driver& driver = Driver::get();
  CUmemGenericAllocationHandle allocation = 0;
  driver.check(driver.retain(&allocation, memory), "sharing memory");
  CUmemAllocationProp properties = {};
  CUresult result = driver.properties(&properties, allocation);
  const bool by_fabric = (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  handle.kind = by_fabric ? Kind::fabric : Kind::file;
  int file = -1;
  void* const to = by_fabric ? static_cast<void*>(handle.opaque) : &file;
  if (result == CUDA_SUCCESS) result = driver.export_handle(to, allocation, type_of(handle.kind), 0);
  driver.release(allocation);
  driver.check(result, "sharing memory");
  handle.file = passed(above_standard(file));
}

Handle handle_of(void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  Handle handle{};
  handle.bytes = range_around(at).bytes;
  if (attribute_of(at, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) == 0) {
    share_virtual_memory(handle, memory);
    return handle;
  }
  cudaIpcMemHandle_t shared;
  check(cudaIpcGetMemHandle(&shared, memory), "sharing memory");
  handle.kind = Kind::ipc;
  std::memcpy(handle.opaque, &shared, sizeof shared);
  return handle;
}

CUmemGenericAllocationHandle import(Handle handle) {
  const Driver& driver = Driver::get();
  const int file = handle.kind == Kind::file ? take(handle.file) : -1;
  void* const from = file < 0 ? handle.opaque : reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  CUmemGenericAllocationHandle allocation = 0;
  const CUresult result = driver.import_handle(&allocation, from, type_of(handle.kind));
  if (file >= 0) close(file);
  driver.check(result, "mapping shared memory");
  return allocation;
}

// On the current device. RINGREDUCE_CUDA_HANDLES (ipc, fabric, file) overrides the device's first kind.
void* allocate(std::size_t bytes) {
  const auto kind = wanted();
  if (kind && *kind != Kind::ipc) {
    if (!has_handles(type_of(*kind)))
      throw std::runtime_error("RINGREDUCE_CUDA_HANDLES: this GPU does not support this kind");
    return keep(make(bytes, type_of(*kind)));
  }
  if (!kind && !has_ipc()) {
    if (const auto memory = made_for_others(bytes)) return keep(*memory);
  }
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "memory");
  return memory;
}

void* map(const char* bytes, int count) {
  std::vector<Handle> handles(static_cast<std::size_t>(count));
  std::memcpy(handles.data(), bytes, handles.size() * handle_bytes);
  if (handles[0].kind == Kind::ipc) {
    if (count > 1) throw std::runtime_error("mapping shared memory: IPC handles are mapped one at a time");
    cudaIpcMemHandle_t shared;
    std::memcpy(&shared, handles[0].opaque, sizeof shared);
    void* memory = nullptr;
    check(cudaIpcOpenMemHandle(&memory, shared, cudaIpcMemLazyEnablePeerAccess), "mapping shared memory");
    return memory;
  }
  std::vector<std::size_t> parts;
  for (const Handle& handle : handles) parts.push_back(handle.bytes);
  return keep(import_parts(parts, [&](std::size_t part) { return import(handles[part]); }));
}

}  // namespace
}  // namespace ringreduce::device

using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes) {
  return failure_of([&] { *memory = allocate(bytes); });
}

const char* ringreduce_cuda_free(void* memory) {
  return failure_of([&] {
    if (!give_back_kept(memory)) check(cudaFree(memory), "memory");
  });
}

const char* ringreduce_cuda_allocations(Allocation* found, int* count, const void* memory,
                                        std::size_t bytes) {
  return failure_of([&] {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const int room = *count;
    *count = 0;
    for (std::uint64_t at = begin; at < begin + bytes; at = found[*count - 1].at + found[*count - 1].bytes) {
      if (*count == room) throw std::runtime_error("the memory spans too many allocations");
      Allocation& one = found[(*count)++] = range_around(at);
      one.number = attribute_of(at, CU_POINTER_ATTRIBUTE_BUFFER_ID);
      if (one.number == 0) throw std::runtime_error("looking up memory: CUDA has no number for it");
    }
  });
}

const char* ringreduce_cuda_share(char* handle, void* memory) {
  return failure_of([&] {
    const Handle made = handle_of(memory);
    std::memcpy(handle, &made, sizeof made);
  });
}

// Others take a file while it is open here.
const char* ringreduce_cuda_unshare(const char* handle) {
  return failure_of([&] {
    Handle made;
    std::memcpy(&made, handle, sizeof made);
    if (made.kind == Kind::file) close(made.file.file);
  });
}

const char* ringreduce_cuda_map(void** memory, const char* handles, int count) {
  return failure_of([&] { *memory = ringreduce::device::map(handles, count); });
}

const char* ringreduce_cuda_unmap(void* memory) {
  return failure_of([&] {
    if (!give_back_kept(memory)) check(cudaIpcCloseMemHandle(memory), "shared memory");
  });
}
