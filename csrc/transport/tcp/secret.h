// How ranks of one job recognise each other: a secret that all of them have, and proofs of knowing it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ringreduce {

using Digest = std::array<std::uint8_t, 32>;

// SHA-256 (FIPS 180-4), and HMAC over it (RFC 2104).
Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);

// In a time that does not depend on where they differ.
bool equal(const Digest& a, const Digest& b);

// From the system; throws Error if it returns none.
std::string random_bytes(std::size_t count);

}  // namespace ringreduce
