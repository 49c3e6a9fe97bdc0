#include "transport/ofi/provider.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <vector>

#include "transport/interface/errors.h"

namespace ringreduce::ofi {
namespace {

constexpr std::size_t least_message = 4096;  // bytes

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

// A list of libfabric's.
using Infos = std::shared_ptr<Info>;
Infos owned(const Library& library, Info* first) {
  return {first, [&library](Info* list) {
            if (list) library.fi_freeinfo(list);
          }};
}

void fill_in(Info& hints, const std::string& provider, std::uint64_t capabilities) {
  hints.caps = capability_message | capability_tagged | capabilities;
  hints.mode = mode_context | mode_context2;
  hints.ep_attr->type = reliable_datagrams;
  hints.domain_attr->threading = of_domain;
  hints.domain_attr->control_progress = hints.domain_attr->data_progress = manual;
  hints.domain_attr->resource_mgmt = managed;
  hints.domain_attr->mr_mode =
      memory_local | memory_virtual | memory_allocated | memory_provider_key | memory_endpoint;
  if (!provider.empty()) hints.fabric_attr->prov_name = strdup(provider.c_str());  // the library frees it
}

Infos offers(const Library& library, const std::string& provider, std::uint64_t capabilities = 0) {
  const Infos hints = owned(library, library.fi_dupinfo(nullptr));
  if (!hints) throw Error("libfabric has no memory left");
  fill_in(*hints, provider, capabilities);
  Info* found = nullptr;
  const int result = library.fi_getinfo(oldest, nullptr, nullptr, 0, hints.get(), &found);
  if (result == 0 || result == -ENODATA) return owned(library, found);
  throw Error("libfabric cannot list its providers: " + std::string(library.fi_strerror(-result)));
}

// The providers that libfabric has at all, and what we need of them.
[[noreturn]] void complain(const Library& library, const std::string& provider, const std::string& domain) {
  std::vector<std::string> names;
  const Infos all = offers(library, "");
  for (const Info* info = all.get(); info; info = info->next) {
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

// Sockets carry what is read as they carry messages, but ask for it first.
bool wants_reads(const Wish& wish) {
  return wish.reads == "1" || (wish.reads != "0" && !is_of_sockets(wish.provider));
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
    throw Error("libfabric " + release() + " is too old: install " + in_words(oldest) +
                " or later, or choose transport tcp");
  }
}

std::string Library::release() const {
  return in_words(fi_version());
}

const Library& Library::get() {
  static const Library library;
  return library;
}

// --- finding ---------------------------------------------------------------------------------------------

bool is_of_sockets(std::string_view provider) {
  return is_one_of(provider, {"tcp", "net", "udp", "sockets"});
}

std::vector<Found> find(const Library& library, const Wish& wish) {
  const auto fit = [](const Infos& all, const Choice& choice) {
    std::vector<Found> found;
    for (const auto& [info, card] : choice.domains) {
      check(*info);
      found.push_back({{all, info}, card});
    }
    return found;
  };
  const Infos all = offers(library, wish.provider);
  const Choice choice = choose(all.get(), wish);
  if (choice.domains.empty() && wish.must_be_faster) throw Error(choice.why_none);
  if (choice.domains.empty()) complain(library, wish.provider, choice.missing);
  std::vector<Found> found = fit(all, choice);
  Wish same{found[0].info->fabric_attr->prov_name, {}, wish.reads, wish.must_be_faster};
  for (const Found& one : found) same.domains.emplace_back(one.info->domain_attr->name);
  if (!wants_reads(same)) return found;
  const Infos readable = offers(library, same.provider, capability_rma);
  std::vector<Found> reading = fit(readable, choose(readable.get(), same));
  for (std::size_t i = 0; i < reading.size(); ++i) reading[i].card = found[i].card;
  return reading.empty() ? found : reading;
}

}  // namespace ringreduce::ofi
