// Compares our declarations of libfabric with its own headers. It compiles if they agree.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <type_traits>

#include "transport/ofi/libfabric.h"

namespace ofi = ringreduce::ofi;

// Values are of one size, and functions take as many arguments of the same sizes.
template <typename Ours, typename Theirs>
struct Alike {
  static constexpr bool value = sizeof(Ours) == sizeof(Theirs);
};
template <typename R, typename... Ours, typename S, typename... Theirs>
struct Alike<R (*)(Ours...), S (*)(Theirs...)> {
  static constexpr bool same() {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
      return (true && ... &&
              (sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>));
    }
    return false;
  }
  static constexpr bool value = same();
};

#define SAME(Ours, ours, Theirs, theirs)                                 \
  static_assert(offsetof(ofi::Ours, ours) == offsetof(Theirs, theirs) && \
                Alike<decltype(ofi::Ours::ours), decltype(Theirs::theirs)>::value)

SAME(ObjectCalls, close, fi_ops, close);
SAME(ObjectCalls, bind, fi_ops, bind);
SAME(ObjectCalls, control, fi_ops, control);
SAME(Object, calls, fid, ops);
static_assert(sizeof(ofi::Object) == sizeof(fid));

SAME(SendAttributes, inject_size, fi_tx_attr, inject_size);
SAME(SendAttributes, rma_iov_limit, fi_tx_attr, rma_iov_limit);
SAME(ReceiveAttributes, iov_limit, fi_rx_attr, iov_limit);
SAME(EndpointAttributes, type, fi_ep_attr, type);
SAME(EndpointAttributes, max_msg_size, fi_ep_attr, max_msg_size);
SAME(EndpointAttributes, mem_tag_format, fi_ep_attr, mem_tag_format);
SAME(DomainAttributes, name, fi_domain_attr, name);
SAME(DomainAttributes, threading, fi_domain_attr, threading);
SAME(DomainAttributes, control_progress, fi_domain_attr, control_progress);
SAME(DomainAttributes, data_progress, fi_domain_attr, data_progress);
SAME(DomainAttributes, resource_mgmt, fi_domain_attr, resource_mgmt);
SAME(DomainAttributes, av_type, fi_domain_attr, av_type);
SAME(DomainAttributes, mr_mode, fi_domain_attr, mr_mode);
SAME(DomainAttributes, mr_key_size, fi_domain_attr, mr_key_size);
SAME(DomainAttributes, mr_iov_limit, fi_domain_attr, mr_iov_limit);
SAME(DomainAttributes, mr_cnt, fi_domain_attr, mr_cnt);
SAME(FabricAttributes, prov_name, fi_fabric_attr, prov_name);
SAME(FabricAttributes, api_version, fi_fabric_attr, api_version);
SAME(Info, next, fi_info, next);
SAME(Info, caps, fi_info, caps);
SAME(Info, mode, fi_info, mode);
SAME(Info, addr_format, fi_info, addr_format);
SAME(Info, tx_attr, fi_info, tx_attr);
SAME(Info, rx_attr, fi_info, rx_attr);
SAME(Info, ep_attr, fi_info, ep_attr);
SAME(Info, domain_attr, fi_info, domain_attr);
SAME(Info, fabric_attr, fi_info, fabric_attr);

SAME(FabricCalls, domain, fi_ops_fabric, domain);
SAME(FabricCalls, trywait, fi_ops_fabric, trywait);
SAME(Fabric, calls, fid_fabric, ops);
SAME(DomainCalls, av_open, fi_ops_domain, av_open);
SAME(DomainCalls, cq_open, fi_ops_domain, cq_open);
SAME(DomainCalls, endpoint, fi_ops_domain, endpoint);
SAME(Domain, calls, fid_domain, ops);
SAME(Domain, memory, fid_domain, mr);
SAME(RegisterCalls, reg, fi_ops_mr, reg);
SAME(Memory, description, fid_mr, mem_desc);
SAME(Memory, key, fid_mr, key);
static_assert(sizeof(ofi::Memory) == sizeof(fid_mr));
SAME(AddressesAttributes, type, fi_av_attr, type);
SAME(AddressesAttributes, count, fi_av_attr, count);
SAME(AddressesAttributes, flags, fi_av_attr, flags);
static_assert(sizeof(ofi::AddressesAttributes) == sizeof(fi_av_attr));
SAME(AddressesCalls, insert, fi_ops_av, insert);
SAME(Addresses, calls, fid_av, ops);

SAME(QueueAttributes, size, fi_cq_attr, size);
SAME(QueueAttributes, format, fi_cq_attr, format);
SAME(QueueAttributes, wait_obj, fi_cq_attr, wait_obj);
SAME(QueueAttributes, wait_cond, fi_cq_attr, wait_cond);
SAME(QueueAttributes, wait_set, fi_cq_attr, wait_set);
static_assert(sizeof(ofi::QueueAttributes) == sizeof(fi_cq_attr));
SAME(Completion, context, fi_cq_msg_entry, op_context);
SAME(Completion, flags, fi_cq_msg_entry, flags);
SAME(Completion, bytes, fi_cq_msg_entry, len);
static_assert(sizeof(ofi::Completion) == sizeof(fi_cq_msg_entry));
SAME(FailedCompletion, context, fi_cq_err_entry, op_context);
SAME(FailedCompletion, error, fi_cq_err_entry, err);
SAME(FailedCompletion, error_data, fi_cq_err_entry, err_data);
SAME(FailedCompletion, error_data_size, fi_cq_err_entry, err_data_size);
static_assert(sizeof(ofi::FailedCompletion) >= sizeof(fi_cq_err_entry));
SAME(QueueCalls, read, fi_ops_cq, read);
SAME(QueueCalls, readerr, fi_ops_cq, readerr);
SAME(Queue, calls, fid_cq, ops);

SAME(NameCalls, getname, fi_ops_cm, getname);
SAME(MessageCalls, recv, fi_ops_msg, recv);
SAME(MessageCalls, send, fi_ops_msg, send);
SAME(MessageCalls, inject, fi_ops_msg, inject);
SAME(TaggedCalls, recv, fi_ops_tagged, recv);
SAME(TaggedCalls, send, fi_ops_tagged, send);
SAME(EndpointCalls, cancel, fi_ops_ep, cancel);
SAME(Endpoint, calls, fid_ep, ops);
SAME(Endpoint, names, fid_ep, cm);
SAME(Endpoint, messages, fid_ep, msg);
SAME(MemoryCalls, read, fi_ops_rma, read);
SAME(Endpoint, memory, fid_ep, rma);
SAME(Endpoint, tagged, fid_ep, tagged);

static_assert(ofi::version(1, 9) == FI_VERSION(1, 9));
static_assert(ofi::capability_message == FI_MSG && ofi::capability_tagged == FI_TAGGED);
static_assert(ofi::capability_rma == FI_RMA && ofi::flag_read == FI_READ && ofi::flag_send == FI_SEND);
static_assert(ofi::flag_remote_read == FI_REMOTE_READ);
static_assert(ofi::memory_local == FI_MR_LOCAL && ofi::memory_virtual == FI_MR_VIRT_ADDR);
static_assert(ofi::memory_allocated == FI_MR_ALLOCATED && ofi::memory_provider_key == FI_MR_PROV_KEY);
static_assert(ofi::memory_endpoint == FI_MR_ENDPOINT);
static_assert(ofi::flag_receive == FI_RECV && ofi::flag_transmit == FI_TRANSMIT);
static_assert(ofi::mode_context == FI_CONTEXT && ofi::mode_context2 == FI_CONTEXT2);
static_assert(ofi::reliable_datagrams == FI_EP_RDM && ofi::of_domain == FI_THREAD_DOMAIN);
static_assert(ofi::manual == FI_PROGRESS_MANUAL && ofi::managed == FI_RM_ENABLED);
static_assert(ofi::entries_of_messages == FI_CQ_FORMAT_MSG);
static_assert(ofi::wait_none == FI_WAIT_NONE && ofi::wait_by_descriptor == FI_WAIT_FD);
static_assert(ofi::command_get_wait == FI_GETWAIT && ofi::command_enable == FI_ENABLE);
static_assert(ofi::no_address == FI_ADDR_UNSPEC && ofi::error_is_available == FI_EAVAIL);

#define RINGREDUCE_SAME(result, name, arguments) \
  static_assert(Alike<decltype(ofi::Library::name), decltype(&::name)>::value);
RINGREDUCE_LIBFABRIC(RINGREDUCE_SAME)
