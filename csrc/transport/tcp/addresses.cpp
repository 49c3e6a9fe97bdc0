#include "transport/tcp/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

bool is_link_local(const Address& a) {
  return a.family == 6 ? a.bytes[0] == 0xfe && (a.bytes[1] & 0xc0) == 0x80
                       : a.bytes[0] == 169 && a.bytes[1] == 254;
}

bool same_network(const Address& a, const Address& b) {
  if (a.family != b.family) return false;
  const int bits = std::min<int>({a.prefix, b.prefix, a.family == 4 ? 32 : 128});
  const int whole = bits / 8, rest = bits % 8;
  if (std::memcmp(a.bytes, b.bytes, static_cast<std::size_t>(whole)) != 0) return false;
  return rest == 0 || (a.bytes[whole] ^ b.bytes[whole]) >> (8 - rest) == 0;
}

int prefix_of(const sockaddr* mask) {
  int bits = 0;
  if (!mask) return 0;
  if (mask->sa_family == AF_INET) {
    return std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr);
  }
  for (std::uint8_t byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr) {
    bits += std::popcount(byte);
  }
  return bits;
}

// Networks that a host has for its own guests, which look the same on every host.
bool is_for_guests(std::string_view name) {
  return name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("br-") ||
         name.starts_with("cni") || name.starts_with("lxc");
}

// Smaller is likelier.
constexpr int loopback = 8, guests = 4;
int doubt(const ifaddrs& entry, const Address& address) {
  return (is_loopback(address) ? loopback : 0) + (is_for_guests(entry.ifa_name) ? guests : 0) +
         (is_link_local(address) ? 2 : 0) + (address.family == 6 ? 1 : 0);
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

bool is_loopback(const Address& a) {
  return a.family == 4 ? a.bytes[0] == 127 : std::count(a.bytes, a.bytes + 15, 0) == 15 && a.bytes[15] == 1;
}

bool has_loopback(const std::vector<Address>& addresses) {
  return std::any_of(addresses.begin(), addresses.end(), is_loopback);
}

std::string in_words(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address.family == 4 ? AF_INET : AF_INET6, address.bytes, text, sizeof text);
  std::string words = address.family == 4 ? text : "[";
  if (address.family != 4) words.append(text).append("]");
  return words.append(":").append(std::to_string(address.port));
}

socklen_t to_socket(const Address& address, sockaddr_storage& out) {
  out = {};
  if (address.family == 4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    std::memcpy(&v4.sin_addr, address.bytes, 4);
    return sizeof v4;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  v6.sin6_scope_id = address.interface;
  std::memcpy(&v6.sin6_addr, address.bytes, 16);
  return sizeof v6;
}

Address from_socket(const sockaddr_storage& from) {
  Address address;
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    address.family = 4;
    address.port = ntohs(v4.sin_port);
    std::memcpy(address.bytes, &v4.sin_addr, 4);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    address.family = 6;
    address.port = ntohs(v6.sin6_port);
    std::memcpy(address.bytes, &v6.sin6_addr, 16);
    if (is_link_local(address)) address.interface = v6.sin6_scope_id;
  }
  return address;
}

namespace {

using InterfaceList = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

InterfaceList interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw Error("cannot read the addresses of this host");
  return {list, freeifaddrs};
}

// nullopt if the interface is down, or does not use IP.
std::optional<Address> address_of(const ifaddrs& entry) {
  if (!entry.ifa_addr || !(entry.ifa_flags & IFF_UP)) return std::nullopt;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  sockaddr_storage storage{};
  std::memcpy(&storage, entry.ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  Address address = from_socket(storage);
  address.prefix = static_cast<std::uint8_t>(prefix_of(entry.ifa_netmask));
  return address;
}

}  // namespace

// Works even if the system does not yet own the address for certain.
Descriptor listen_at(Address& address) {
  constexpr int backlog = 4096;
  sockaddr_storage storage;
  socklen_t length = to_socket(address, storage);
  auto* const at = reinterpret_cast<sockaddr*>(&storage);
  Descriptor socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return socket;
  const int yes = 1;
  setsockopt(socket.get(), IPPROTO_IP, IP_FREEBIND, &yes, sizeof yes);
  if (bind(socket.get(), at, length) != 0 || ::listen(socket.get(), backlog) != 0 ||
      getsockname(socket.get(), at, &length) != 0) {
    socket.reset();
  } else {
    address.port = from_socket(storage).port;
  }
  return socket;
}

std::vector<Address> own_addresses(const std::string& interface) {
  const InterfaceList list = interfaces();
  std::vector<std::pair<int, Address>> found;
  std::set<std::string> names;
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next) {
    const auto address = address_of(*entry);
    if (!address) continue;
    names.insert(entry->ifa_name);
    if (!interface.empty() && interface != entry->ifa_name) continue;
    found.emplace_back(doubt(*entry, *address), *address);
  }
  if (!interface.empty() && found.empty()) {
    throw InvalidArgument(
        std::string("RINGREDUCE_IFACE must name an interface that is up and has an address: ") +
        listed(names) + ", not '" + interface + "'");
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Address> addresses, loopbacks;
  const bool others = !found.empty() && found[0].first < guests;
  for (const auto& [doubt, address] : found) {
    if (doubt >= loopback) {
      loopbacks.push_back(address);
    } else if ((doubt < guests || !others) && addresses.size() < most_addresses - 1) {
      addresses.push_back(address);
    }
  }
  if (!loopbacks.empty()) addresses.push_back(loopbacks[0]);
  return addresses;
}

std::string interface_of(const Address& address) {
  const InterfaceList list = interfaces();
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next) {
    const auto own = address_of(*entry);
    if (own && own->family == address.family && std::equal(own->bytes, own->bytes + 16, address.bytes)) {
      return entry->ifa_name;
    }
  }
  return "";
}

std::vector<Address> order_to_try(const std::vector<Address>& theirs, const std::vector<Address>& own,
                                  bool together) {
  const bool loops = together && has_loopback(theirs);
  std::vector<Address> near, others;
  for (Address address : theirs) {
    if (is_loopback(address) != loops) continue;
    bool is_near = false;
    for (const Address& mine : own) {
      if (is_loopback(mine) || !same_network(address, mine)) continue;
      is_near = true;
      // Interface numbers are local to each host.
      if (address.interface) address.interface = mine.interface;
    }
    (is_near ? near : others).push_back(address);
  }
  near.insert(near.end(), others.begin(), others.end());
  return near;
}

HostIdentity this_host() {
  HostIdentity identity;
  std::string boot;
  if (!(std::ifstream("/proc/sys/kernel/random/boot_id") >> boot)) {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    boot = name;
  }
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : boot) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  identity.machine = hash;
  struct stat network{};
  if (stat("/proc/self/ns/net", &network) == 0) identity.network = network.st_ino;
  return identity;
}

}  // namespace ringreduce
