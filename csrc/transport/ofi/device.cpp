#include "transport/ofi/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "transport/interface/errors.h"

namespace ringreduce::ofi {
namespace {

constexpr std::size_t least_message = 4096;           // bytes
constexpr std::uint64_t tag_bits = (1ULL << 56) - 1;  // that providers must compare
constexpr std::size_t longest_name = 512;

std::string in_words(std::uint32_t version) {
  return std::to_string(version >> 16) + "." + std::to_string(version & 0xffff);
}

// Whether a provider is one of these, perhaps with a layer above it: "tcp;ofi_rxm" is "tcp".
bool is_one_of(std::string_view provider, std::initializer_list<std::string_view> names) {
  const std::string_view core = provider.substr(0, provider.find(';'));
  for (const std::string_view name : names) {
    if (core == name) return true;
  }
  return false;
}

bool is_of_sockets(std::string_view provider) {
  return is_one_of(provider, {"tcp", "net", "udp", "sockets"});
}

struct Infos {
  const Library& library;
  Info* first = nullptr;
  ~Infos() {
    if (first) library.fi_freeinfo(first);
  }
};

void fill_in(Info& hints, const std::string& provider) {
  hints.caps = capability_message | capability_tagged;
  hints.mode = mode_context | mode_context2;
  hints.ep_attr->type = reliable_datagrams;
  hints.domain_attr->threading = of_domain;
  hints.domain_attr->control_progress = hints.domain_attr->data_progress = manual;
  hints.domain_attr->resource_mgmt = managed;
  if (!provider.empty()) hints.fabric_attr->prov_name = strdup(provider.c_str());  // the library frees it
}

Info* find(const Library& library, const std::string& provider) {
  Infos hints{library, library.fi_dupinfo(nullptr)};
  if (!hints.first) throw Error("libfabric has no memory left");
  fill_in(*hints.first, provider);
  Info* found = nullptr;
  const int result = library.fi_getinfo(oldest, nullptr, nullptr, 0, hints.first, &found);
  if (result == 0 || result == -ENODATA) return found;
  throw Error("libfabric cannot list its providers: " + std::string(library.fi_strerror(-result)));
}

// The providers that libfabric has at all, and what we need of them.
[[noreturn]] void complain(const Library& library, const std::string& provider, const std::string& domain) {
  std::vector<std::string> names;
  const Infos all{library, find(library, "")};
  for (const Info* info = all.first; info; info = info->next) {
    const std::string name = info->fabric_attr->prov_name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  const std::string here = text.empty() ? "none here has them" : "those that have them here: " + text;
  if (!domain.empty()) {
    throw Error("libfabric finds no domain " + domain + (provider.empty() ? "" : " of provider " + provider) +
                " with reliable tagged messages (RINGREDUCE_OFI_DOMAIN; fi_info lists domains)");
  }
  if (!provider.empty()) {
    throw Error("libfabric finds no provider " + provider + " with reliable tagged messages; " + here +
                " (RINGREDUCE_OFI_PROVIDER)");
  }
  throw Error(
      "libfabric finds no provider with reliable tagged messages: look at what fi_info -t FI_EP_RDM says");
}

void check(const Info& info) {
  const std::string name = info.fabric_attr->prov_name;
  const auto lacks = [&](const std::string& what) {
    throw Error("provider " + name + " of libfabric " + what +
                ": choose another one (RINGREDUCE_OFI_PROVIDER)");
  };
  if (info.ep_attr->max_msg_size < least_message) {
    lacks("sends only " + std::to_string(info.ep_attr->max_msg_size) + " bytes at once, and " +
          std::to_string(least_message) + " are needed");
  }
  if (std::bit_width(info.ep_attr->mem_tag_format) < std::bit_width(tag_bits)) {
    lacks("compares fewer than 56 bits of a tag");
  }
  if (info.mode & ~(mode_context | mode_context2))
    lacks("asks for more of a message than room for its context");
}

}  // namespace

Library::Library() {
  void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    throw Error(std::string("libfabric cannot be loaded (") + dlerror() +
                "): install it (Debian: libfabric1), or choose transport tcp");
  }
  const auto found = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function) return;
    throw Error(std::string("libfabric.so.1 has no function ") + name + ": install libfabric " +
                in_words(oldest) + " or later, or choose transport tcp");
  };
#define RINGREDUCE_FIND(result, name, arguments) found(name, #name);
  RINGREDUCE_LIBFABRIC(RINGREDUCE_FIND)
#undef RINGREDUCE_FIND
  if (fi_version() < oldest) {
    throw Error("libfabric " + in_words(fi_version()) + " is too old: install " + in_words(oldest) +
                " or later, or choose transport tcp");
  }
}

const Library& Library::get() {
  static const Library library;
  return library;
}

// --- opening ---------------------------------------------------------------------------------------------

Device::Device(const Wish& wish) : library_(Library::get()) {
  const Infos infos{library_, find(library_, wish.provider)};
  const Choice choice = choose(infos.first, wish);
  card_ = choice.card;
  if (!choice.info && wish.must_be_faster) throw Error(card_);
  if (!choice.info) complain(library_, wish.provider, wish.domain);
  check(*choice.info);
  open(*choice.info);
}

void Device::open(Info& info) {
  provider_ = info.fabric_attr->prov_name;
  domain_name_ = info.domain_attr->name;
  format_ = info.addr_format;
  longest_ = info.ep_attr->max_msg_size;
  inject_ = info.tx_attr->inject_size;
  quick_ = !is_of_sockets(provider_);
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

bool Device::send(std::uint64_t to, const void* data, std::size_t bytes, void* context) {
  return taken(endpoint_->messages->send(endpoint_.get(), data, bytes, nullptr, to, context), "send");
}

bool Device::receive(void* data, std::size_t bytes, void* context) {
  return taken(endpoint_->messages->recv(endpoint_.get(), data, bytes, nullptr, no_address, context),
               "receive");
}

bool Device::send_tagged(std::uint64_t to, std::uint64_t tag, const void* data, std::size_t bytes,
                         void* context) {
  const auto send = endpoint_->tagged->send;
  return taken(send(endpoint_.get(), data, bytes, nullptr, to, tag & tag_bits, context), "send");
}

bool Device::receive_tagged(std::uint64_t tag, void* data, std::size_t bytes, void* context) {
  const auto receive = endpoint_->tagged->recv;
  return taken(receive(endpoint_.get(), data, bytes, nullptr, no_address, tag & tag_bits, 0, context),
               "receive");
}

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

bool Device::may_sleep() {
  Object* queue = &queue_->object;
  return fabric_->calls->trywait(fabric_.get(), &queue, 1) == 0;
}

}  // namespace ringreduce::ofi
