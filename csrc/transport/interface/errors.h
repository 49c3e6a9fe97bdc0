// How things fail. Transports and the engine throw these; the bindings turn each into its Python exception.
#pragma once

#include <stdexcept>
#include <string>

namespace ringreduce {

struct Error : std::runtime_error {
  explicit Error(const std::string& what, int culprit = -1) : runtime_error(what), culprit(culprit) {}
  int culprit;  // the rank that is to blame or was waited on, or -1
};

// An argument that cannot be served; the communicator stays usable.
struct InvalidArgument : Error {
  using Error::Error;
};

// A communicator that was closed, or that belongs to the process this one was forked from.
struct Closed : Error {
  using Error::Error;
};

// A wait was broken off by the user (Ctrl-C); the bindings re-raise what the signal handler raised. It is no
// Error, so that nobody who makes do without what has failed goes on.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// After one of these a communicator refuses work with the same cause until shrink() makes a new one.
enum class Cause : unsigned char { none, peer_lost, mismatch, timeout, damaged };
// As a peer has said it: what is no cause counts as the loss of a rank.
constexpr Cause cause_numbered(unsigned long number) {
  const bool known = number > 0 && number <= static_cast<unsigned long>(Cause::damaged);
  return known ? static_cast<Cause>(number) : Cause::peer_lost;
}

struct Failure : Error {
  Failure(Cause cause, int culprit, const std::string& what) : Error(what, culprit), cause(cause) {}
  Cause cause;
};

// The ranks called different things: `peer` something else than this rank.
struct Disagreement {
  int peer;
};

}  // namespace ringreduce
