// Exchanges among the ranks of a group, and steps that either all of them take or none.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

// Plain data as bytes.
template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A number that nobody else gets.
inline std::uint64_t random_number() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random();
}

// Every rank's plain data, by rank. check(rank, value) may throw for a wrong value, even if its length is
// wrong; if it does not, a wrong length throws Error.
template <typename T, typename Check>
std::vector<T> exchange_values(const Exchange& exchange, int world, const T& own, Check check) {
  const auto blobs = exchange(bytes_of(own));
  if (static_cast<int>(blobs.size()) != world) {
    throw Error("the bootstrap exchange returned the wrong number of blobs");
  }
  std::vector<T> all(blobs.size());
  for (int rank = 0; rank < world; ++rank) {
    std::memcpy(static_cast<void*>(&all[rank]), blobs[rank].data(), std::min(blobs[rank].size(), sizeof own));
    check(rank, all[rank]);
    if (blobs[rank].size() != sizeof own) throw Error("the bootstrap exchange returned a malformed blob");
  }
  return all;
}
template <typename T>
std::vector<T> exchange_values(const Exchange& exchange, int world, const T& own) {
  return exchange_values(exchange, world, own, [](int, const T&) {});
}

// Runs a step that needs no other rank and may fail. Either all ranks get everyone's blob, or all throw Error
// with the problem of the first rank that failed. It exchanges once.
inline std::vector<std::string> exchange_or_fail(const Exchange& exchange,
                                                 const std::function<std::string()>& blob) {
  std::string own, failure;
  try {
    own = blob();
  } catch (const Error& error) {
    failure = error.what();
    if (failure.empty()) failure = "unknown";
  }
  std::vector<std::string> all = exchange(failure.empty() ? 'w' + own : 'f' + failure.substr(0, 500));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with('w')) {
      all[rank].erase(0, 1);
    } else {
      throw Error("rank " + std::to_string(rank) + ": " + all[rank].substr(1));
    }
  }
  return all;
}

// The same for plain data, by rank.
template <typename Make>
auto exchange_values_or_fail(const Exchange& exchange, Make make) {
  std::vector<decltype(make())> all;
  for (const std::string& blob : exchange_or_fail(exchange, [&] { return bytes_of(make()); })) {
    auto& value = all.emplace_back();
    std::memcpy(static_cast<void*>(&value), blob.data(), std::min(blob.size(), sizeof value));
  }
  return all;
}

}  // namespace ringreduce
