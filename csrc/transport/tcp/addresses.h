// Where a rank can be reached over a network.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ringreduce {

// As plain data that ranks can tell each other.
struct Address {
  std::uint8_t family = 0;      // 4 or 6
  std::uint8_t prefix = 0;      // bits of the network that it belongs to
  std::uint16_t port = 0;       // of the host's byte order
  std::uint32_t interface = 0;  // of an address that means something on its link only
  std::uint8_t bytes[16] = {};
};

std::string in_words(const Address& address);

bool is_loopback(const Address& address);
bool has_loopback(const std::vector<Address>& addresses);

// As the system takes it; returns its length.
socklen_t to_socket(const Address& address, sockaddr_storage& out);
Address from_socket(const sockaddr_storage& from);

// The addresses of this host by which others may reach it, the likeliest first, and a loopback address as the
// last; those of networks that it has for its own guests (Docker's, libvirt's) only if there are no others.
// Or those of one interface, as RINGREDUCE_IFACE names it: throws InvalidArgument if there is no such
// interface.
std::vector<Address> own_addresses(const std::string& interface = "");

// The name of the one that has an address; empty: none of this host's.
std::string interface_of(const Address& address);

// A peer's addresses in the order in which they are to be tried from here: those of a network that this host
// belongs to first. `together`: both are on one host, where the loopback address alone will do.
std::vector<Address> order_to_try(const std::vector<Address>& theirs, const std::vector<Address>& own,
                                  bool together);

// Tells hosts apart, and network namespaces of one host.
struct HostIdentity {
  std::uint64_t machine = 0, network = 0;
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};
HostIdentity this_host();

}  // namespace ringreduce
