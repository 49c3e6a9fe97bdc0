// How a rank can be reached over a network.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/interface/descriptor.h"

namespace ringreduce {

// As plain data that ranks can exchange.
struct Address {
  std::uint8_t family = 0;      // 4 or 6
  std::uint8_t prefix = 0;      // bits of the network that it belongs to
  std::uint16_t port = 0;       // in the host's byte order
  std::uint32_t interface = 0;  // of an address that is valid on its link only
  std::uint8_t bytes[16] = {};
};

constexpr std::size_t most_addresses = 6;  // of a rank

std::string in_words(const Address& address);

bool is_loopback(const Address& address);
bool has_loopback(const std::vector<Address>& addresses);

// Converts it for the system; returns its length.
socklen_t to_socket(const Address& address, sockaddr_storage& out);
Address from_socket(const sockaddr_storage& from);

// A socket that listens at a free port of an address, which is set. Empty, with errno, if there is none.
Descriptor listen_at(Address& address);

// The addresses of this host at which others may reach it, the likeliest first, and a loopback address last.
// Networks for the host's own guests (Docker's, libvirt's) count only if there are no others. With
// `interface`, as in RINGREDUCE_IFACE, only its addresses; throws InvalidArgument if there is no such
// interface.
std::vector<Address> own_addresses(const std::string& interface = "");

// The name of the interface that has an address; empty if it is not this host's.
std::string interface_of(const Address& address);

// A peer's addresses in the order in which to try them from here: those in a network that this host belongs
// to come first. `together`: both are on one host, where the loopback address is enough.
std::vector<Address> order_to_try(const std::vector<Address>& theirs, const std::vector<Address>& own,
                                  bool together);

// Identifies a host, and a network namespace on it.
struct HostIdentity {
  std::uint64_t machine = 0, network = 0;
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};
HostIdentity this_host();

}  // namespace ringreduce
