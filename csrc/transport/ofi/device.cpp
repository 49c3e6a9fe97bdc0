#include "transport/ofi/device.h"

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce::ofi {
namespace {

constexpr std::size_t longest_name = 512;

}  // namespace

// --- opening ---------------------------------------------------------------------------------------------

Device::Device(const Library& library, const Found& found) : library_(library), card_(found.card) {
  open(*found.info);
}

void Device::open(Info& info) {
  provider_ = info.fabric_attr->prov_name;
  domain_name_ = info.domain_attr->name;
  format_ = info.addr_format;
  longest_ = info.ep_attr->max_msg_size;
  inject_ = info.tx_attr->inject_size;
  quick_ = !is_of_sockets(provider_);
  reads_ = (info.caps & capability_rma) != 0;
  memory_mode_ = info.domain_attr->mr_mode;
  if (info.domain_attr->mr_cnt > 0) most_regions_ = std::min(most_regions_, info.domain_attr->mr_cnt);
  const std::size_t key_bytes = info.domain_attr->mr_key_size;
  if (key_bytes > 0 && key_bytes < sizeof key_bits_) key_bits_ = (std::uint64_t{1} << 8 * key_bytes) - 1;
  const auto opened = [&](int result, const char* what) {
    if (result == 0) return;
    throw Error("provider " + provider_ + " of libfabric cannot open " + what + " of domain " + domain_name_ +
                ": " + library_.fi_strerror(-result) +
                " (RINGREDUCE_OFI_PROVIDER and RINGREDUCE_OFI_DOMAIN choose others)");
  };
  const auto open_one = [&](auto& owned, const char* what, auto&& open) {
    typename std::remove_reference_t<decltype(owned)>::pointer object = nullptr;
    opened(open(&object), what);
    owned.reset(object);
  };
  open_one(fabric_, "a fabric",
           [&](auto** fabric) { return library_.fi_fabric(info.fabric_attr, fabric, nullptr); });
  open_one(domain_, "a domain",
           [&](auto** domain) { return fabric_->calls->domain(fabric_.get(), &info, domain, nullptr); });
  AddressesAttributes addresses{};
  addresses.type = info.domain_attr->av_type;
  open_one(addresses_, "a table of addresses",
           [&](auto** table) { return domain_->calls->av_open(domain_.get(), &addresses, table, nullptr); });
  open_queue();
  open_one(endpoint_, "an endpoint",
           [&](auto** end) { return domain_->calls->endpoint(domain_.get(), &info, end, nullptr); });
  Object& end = endpoint_->object;
  opened(end.calls->bind(&end, &addresses_->object, 0), "a table of addresses");
  opened(end.calls->bind(&end, &queue_->object, flag_receive | flag_transmit), "a queue");
  opened(end.calls->control(&end, command_enable, nullptr), "an endpoint");
  name_.resize(longest_name);
  std::size_t length = name_.size();
  opened(endpoint_->names->getname(&end, name_.data(), &length), "an endpoint with a name");
  name_.resize(length);
}

// With a descriptor to wait on, if the provider has one.
void Device::open_queue() {
  QueueAttributes attributes{};
  attributes.format = entries_of_messages;
  Queue* queue = nullptr;
  int result = -1;
  for (const int wait : {wait_by_descriptor, wait_none}) {
    attributes.wait_obj = wait;
    result = domain_->calls->cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (result != 0) continue;
    queue_.reset(queue);
    if (wait == wait_none) return;
    if (queue->object.calls->control(&queue->object, command_get_wait, &descriptor_) == 0) return;
    descriptor_ = -1;
    queue_.reset();
  }
  throw Error("provider " + provider_ +
              " of libfabric cannot open a queue: " + library_.fi_strerror(-result));
}

std::uint64_t Device::address_of(const std::string& name) {
  std::uint64_t address = no_address;
  const int inserted = addresses_->calls->insert(addresses_.get(), name.data(), 1, &address, 0, nullptr);
  if (inserted == 1) return address;
  throw Error("provider " + provider_ + " of libfabric does not accept a peer's address: " +
              library_.fi_strerror(inserted < 0 ? -inserted : EINVAL));
}

// --- moving ----------------------------------------------------------------------------------------------

bool Device::taken(ssize_t result, const char* what) const {
  if (result == 0) return true;
  if (result == -EAGAIN) return false;
  throw Error("provider " + provider_ + " of libfabric cannot " + what + ": " +
              library_.fi_strerror(static_cast<int>(-result)));
}

bool Device::inject(std::uint64_t to, const void* data, std::size_t bytes) {
  return taken(endpoint_->messages->inject(endpoint_.get(), data, bytes, to), "send");
}

bool Device::send(std::uint64_t to, const Span& data, void* context) {
  const auto send = endpoint_->messages->send;
  return taken(send(endpoint_.get(), data.at, data.bytes, data.description, to, context), "send");
}

bool Device::receive(const Span& data, void* context) {
  const auto receive = endpoint_->messages->recv;
  return taken(receive(endpoint_.get(), data.at, data.bytes, data.description, no_address, context),
               "receive");
}

bool Device::send_tagged(std::uint64_t to, std::uint64_t tag, const Span& data, void* context) {
  const auto send = endpoint_->tagged->send;
  return taken(send(endpoint_.get(), data.at, data.bytes, data.description, to, tag & tag_bits, context),
               "send");
}

bool Device::receive_tagged(std::uint64_t tag, const Span& data, void* context) {
  const auto receive = endpoint_->tagged->recv;
  return taken(
      receive(endpoint_.get(), data.at, data.bytes, data.description, no_address, tag & tag_bits, 0, context),
      "receive");
}

void Device::cancel(void* context) {
  endpoint_->calls->cancel(&endpoint_->object, context);
}

bool Device::read(std::uint64_t from, const RemotePlace& place, const Span& data, void* context) {
  const auto read = endpoint_->memory->read;
  return taken(
      read(endpoint_.get(), data.at, data.bytes, data.description, from, place.address, place.key, context),
      "read");
}

// --- memory ----------------------------------------------------------------------------------------------

Owned<Memory> Device::registered(const void* data, std::size_t bytes) {
  constexpr int most_tries = 8;
  const std::uint64_t access = flag_send | flag_receive | (reads_ ? flag_read | flag_remote_read : 0);
  Memory* memory = nullptr;
  int result = -ENOKEY;
  for (int i = 0; i < most_tries && result == -ENOKEY; ++i) {
    // Strangers can read what they know the key of.
    const std::uint64_t key = memory_mode_ & memory_provider_key ? 0 : random_number() & key_bits_;
    result = domain_->memory->reg(&domain_->object, data, bytes, access, 0, key, 0, &memory, nullptr);
  }
  if (result != 0) {
    why_not_registered_ = library_.fi_strerror(-result);
    return {};
  }
  Owned<Memory> owned(memory);
  if (memory_mode_ & memory_endpoint) {
    Object& object = memory->object;
    if (object.calls->bind(&object, &endpoint_->object, 0) != 0) return {};
    if (object.calls->control(&object, command_enable, nullptr) != 0) return {};
  }
  return owned;
}

RemotePlace Device::place_of(const Memory& memory, const void* begin, const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t base = memory_mode_ & memory_virtual ? 0 : reinterpret_cast<std::uintptr_t>(begin);
  return {address - base, memory.key};
}

// --- completions -----------------------------------------------------------------------------------------

int Device::completions(Completion* completions, std::size_t most) {
  const ssize_t count = queue_->calls->read(queue_.get(), completions, most);
  if (count >= 0) return static_cast<int>(count);
  if (count == -EAGAIN || count == -EINTR) return 0;
  if (count == -error_is_available) return -1;
  throw Error("provider " + provider_ +
              " of libfabric fails: " + library_.fi_strerror(static_cast<int>(-count)));
}

bool Device::failed(FailedCompletion& completion, std::string& why) {
  completion = {};
  if (queue_->calls->readerr(queue_.get(), &completion, 0) != 1) return false;
  why = library_.fi_strerror(completion.error);
  return true;
}

// The layer ofi_rxm frees a connection, and looks at what has completed on it only then (rxm_close_conn() in
// rxm_conn.c, up to version 2.5). A large message that has just been read by the receiver is acknowledged
// over the connection that is gone, and one that has just been announced is read over it.
bool Device::closes_at_any_time() const {
  return !provider_.ends_with(";ofi_rxm");
}

bool Device::may_sleep() {
  Object* queue = &queue_->object;
  return fabric_->calls->trywait(fabric_.get(), &queue, 1) == 0;
}

}  // namespace ringreduce::ofi
