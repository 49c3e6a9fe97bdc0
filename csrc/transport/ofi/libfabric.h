// The parts of libfabric that are used: its own headers need not be installed. Its functions are mostly
// entries of tables that its objects point to. tests/engine/cpp/libfabric_layout.cpp compares all this with
// the headers, where there are any.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringreduce::ofi {

// libfabric adds to the ends of these structures only.
constexpr std::uint32_t version(std::uint32_t major, std::uint32_t minor) {
  return major << 16 | minor;
}
constexpr std::uint32_t oldest = version(1, 9);

constexpr std::uint64_t capability_message = 1 << 1, capability_rma = 1 << 2, capability_tagged = 1 << 3;
constexpr std::uint64_t flag_read = 1 << 8, flag_send = 1 << 11, flag_remote_read = 1 << 12;
constexpr std::uint64_t flag_receive = 1 << 10, flag_transmit = 1 << 11;
constexpr std::uint64_t mode_context = std::uint64_t{1} << 59, mode_context2 = std::uint64_t{1} << 52;
// What registered memory is needed for, how it is addressed, and what that takes.
constexpr int memory_local = 1 << 2, memory_virtual = 1 << 4, memory_allocated = 1 << 5,
              memory_provider_key = 1 << 6, memory_endpoint = 1 << 9;
constexpr int reliable_datagrams = 3, of_domain = 3, manual = 2, managed = 2, entries_of_messages = 2;
constexpr int wait_none = 0, wait_by_descriptor = 3;
constexpr int command_get_wait = 5, command_enable = 6;
constexpr std::uint64_t no_address = ~std::uint64_t{0};
constexpr int error_is_available = 259;
constexpr std::uint64_t tag_bits = (1ULL << 56) - 1;  // that we ask providers to compare

struct Object;
struct ObjectCalls {
  std::size_t size;
  int (*close)(Object*);
  int (*bind)(Object*, Object*, std::uint64_t flags);
  int (*control)(Object*, int command, void*);
};
struct Object {
  std::size_t kind;
  void* context;
  const ObjectCalls* calls;
};

// --- what there is ---------------------------------------------------------------------------------------

struct SendAttributes {
  std::uint64_t caps, mode, op_flags, msg_order, comp_order;
  std::size_t inject_size, size, iov_limit, rma_iov_limit;
};
struct ReceiveAttributes {
  std::uint64_t caps, mode, op_flags, msg_order, comp_order;
  std::size_t total_buffered_recv, size, iov_limit;
};
struct EndpointAttributes {
  int type;
  std::uint32_t protocol, protocol_version;
  std::size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
  std::uint64_t mem_tag_format;
};
struct DomainAttributes {
  void* domain;
  char* name;
  int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
  std::size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx,
      max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
  std::uint64_t caps, mode;
  std::uint8_t* auth_key;
  std::size_t auth_key_size, max_err_data, mr_cnt;
};
struct FabricAttributes {
  void* fabric;
  char* name;
  char* prov_name;
  std::uint32_t prov_version, api_version;
};
struct Info {
  Info* next;
  std::uint64_t caps, mode;
  std::uint32_t addr_format;
  std::size_t src_addrlen, dest_addrlen;
  void *src_addr, *dest_addr;
  void* handle;
  SendAttributes* tx_attr;
  ReceiveAttributes* rx_attr;
  EndpointAttributes* ep_attr;
  DomainAttributes* domain_attr;
  FabricAttributes* fabric_attr;
};

// --- objects ---------------------------------------------------------------------------------------------

struct Domain;
struct Fabric;
struct FabricCalls {
  std::size_t size;
  int (*domain)(Fabric*, Info*, Domain**, void* context);
  void (*passive_ep)();
  void (*eq_open)();
  void (*wait_open)();
  int (*trywait)(Fabric*, Object**, int count);
};
struct Fabric {
  Object object;
  const FabricCalls* calls;
};

struct Addresses;
struct AddressesAttributes {
  int type;
  int rx_ctx_bits;
  std::size_t count, ep_per_node;
  const char* name;
  void* map_addr;
  std::uint64_t flags;
};
struct AddressesCalls {
  std::size_t size;
  int (*insert)(Addresses*, const void*, std::size_t count, std::uint64_t* address, std::uint64_t flags,
                void*);
};
struct Addresses {
  Object object;
  const AddressesCalls* calls;
};

struct Queue;
struct QueueAttributes {
  std::size_t size;
  std::uint64_t flags;
  int format, wait_obj, signaling_vector, wait_cond;
  void* wait_set;
};
struct Completion {
  void* context;
  std::uint64_t flags;
  std::size_t bytes;
};
struct FailedCompletion {
  void* context;
  std::uint64_t flags;
  std::size_t bytes;
  void* buffer;
  std::uint64_t data, tag;
  std::size_t too_long_by;
  int error, error_of_provider;
  void* error_data;
  std::size_t error_data_size;
  std::uint64_t later[8];  // what later versions may write
};
struct QueueCalls {
  std::size_t size;
  ssize_t (*read)(Queue*, void*, std::size_t count);
  void (*readfrom)();
  ssize_t (*readerr)(Queue*, FailedCompletion*, std::uint64_t flags);
};
struct Queue {
  Object object;
  const QueueCalls* calls;
};

struct Endpoint;
struct NameCalls {
  std::size_t size;
  void (*setname)();
  int (*getname)(Object*, void*, std::size_t*);
};
struct MessageCalls {
  std::size_t size;
  ssize_t (*recv)(Endpoint*, void*, std::size_t, void* description, std::uint64_t from, void* context);
  void (*recvv)();
  void (*recvmsg)();
  ssize_t (*send)(Endpoint*, const void*, std::size_t, void* description, std::uint64_t to, void* context);
  void (*sendv)();
  void (*sendmsg)();
  ssize_t (*inject)(Endpoint*, const void*, std::size_t, std::uint64_t to);
};
struct TaggedCalls {
  std::size_t size;
  ssize_t (*recv)(Endpoint*, void*, std::size_t, void* description, std::uint64_t from, std::uint64_t tag,
                  std::uint64_t ignored, void* context);
  void (*recvv)();
  void (*recvmsg)();
  ssize_t (*send)(Endpoint*, const void*, std::size_t, void* description, std::uint64_t to, std::uint64_t tag,
                  void* context);
};
struct MemoryCalls {
  std::size_t size;
  ssize_t (*read)(Endpoint*, void*, std::size_t, void* description, std::uint64_t from, std::uint64_t address,
                  std::uint64_t key, void* context);
};
struct EndpointCalls {
  std::size_t size;
  ssize_t (*cancel)(Object*, void* context);
};
struct Endpoint {
  Object object;
  const EndpointCalls* calls;
  const NameCalls* names;
  const MessageCalls* messages;
  const MemoryCalls* memory;
  const TaggedCalls* tagged;
};

struct Memory {
  Object object;
  void* description;
  std::uint64_t key;
};
struct RegisterCalls {
  std::size_t size;
  int (*reg)(Object*, const void*, std::size_t, std::uint64_t access, std::uint64_t offset,
             std::uint64_t requested_key, std::uint64_t flags, Memory**, void* context);
};
struct DomainCalls {
  std::size_t size;
  int (*av_open)(Domain*, AddressesAttributes*, Addresses**, void* context);
  int (*cq_open)(Domain*, QueueAttributes*, Queue**, void* context);
  int (*endpoint)(Domain*, Info*, Endpoint**, void* context);
};
struct Domain {
  Object object;
  const DomainCalls* calls;
  const RegisterCalls* memory;
};

// --- the library -----------------------------------------------------------------------------------------

// F(result, name, arguments)
// clang-format off
#define RINGREDUCE_LIBFABRIC(F) \
  F(std::uint32_t, fi_version, ()) \
  F(int, fi_getinfo, (std::uint32_t version, const char* node, const char* service, std::uint64_t flags, \
                      const Info* hints, Info** found)) \
  F(void, fi_freeinfo, (Info*)) \
  F(Info*, fi_dupinfo, (const Info*)) \
  F(int, fi_fabric, (FabricAttributes*, Fabric**, void* context)) \
  F(const char*, fi_strerror, (int))
// clang-format on

struct Library {
#define RINGREDUCE_DECLARE(result, name, arguments) result(*name) arguments;
  RINGREDUCE_LIBFABRIC(RINGREDUCE_DECLARE)
#undef RINGREDUCE_DECLARE

  // Loads it once; throws Error if it is missing or too old.
  static const Library& get();
  std::string release() const;  // such as 1.17

 private:
  Library();
};

}  // namespace ringreduce::ofi
