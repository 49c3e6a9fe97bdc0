// How ranks of one job recognise each other: a secret that all of them have, and proofs of knowing it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ringreduce {

using Digest = std::array<std::uint8_t, 32>;

// SHA-256 (FIPS 180-4), and HMAC over it (RFC 2104).
Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);

// How each end of a connection shows the other that it knows the secret. A proof covers all that both ends
// have said before, which includes a fresh random number of each: it is worthless on any other connection. It
// names the end that makes it, so nobody can send it back to that end. Strangers learn nothing of the secret
// from it.
class Proof {
 public:
  Proof(std::string secret, std::string said) : secret_(std::move(secret)), said_(std::move(said)) {}

  // `end`: "dial", "accept", or another word for what an end says with its proof. None begins with another.
  Digest of(std::string_view end) const;
  // In a time that does not depend on where they differ.
  bool holds(std::string_view end, const Digest& claimed) const;

 private:
  const std::string secret_, said_;
};

// From the system; throws Error if it returns none.
std::string random_bytes(std::size_t count);

}  // namespace ringreduce
