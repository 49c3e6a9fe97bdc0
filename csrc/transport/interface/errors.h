// How operations fail. Transports and the engine throw these; the bindings turn each into its Python
// exception.
#pragma once

#include <stdexcept>
#include <string>

namespace ringreduce {

struct Error : std::runtime_error {
  explicit Error(const std::string& what, int culprit = -1) : runtime_error(what), culprit(culprit) {}
  int culprit;  // the rank to blame or waited for, or -1
};

// An argument that cannot be used; the communicator stays usable.
struct InvalidArgument : Error {
  using Error::Error;
};

// A call at a time or in a place where it could never complete. The communicator stays usable, too.
struct Misplaced : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

// The communicator was closed, or belongs to the parent that this process was forked from.
struct Closed : Error {
  using Error::Error;
};

// The user interrupted a wait (Ctrl-C); the bindings re-raise what the signal handler raised. It is not an
// Error, so that code which tolerates failures does not continue after it.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The communicator then refuses work with the same cause, until shrink() makes a new one. `minority`:
// shrink() makes no group, because ranks that cannot be reached may continue instead.
enum class Cause : unsigned char { none, peer_lost, mismatch, timeout, damaged, op_failed, minority };
// A cause as a peer reported it; an unknown number counts as the loss of a rank.
constexpr Cause cause_numbered(unsigned long number) {
  const bool known = number > 0 && number < static_cast<unsigned long>(Cause::minority);
  return known ? static_cast<Cause>(number) : Cause::peer_lost;
}

struct Failure : Error {
  Failure(Cause cause, int culprit, const std::string& what) : Error(what, culprit), cause(cause) {}
  Cause cause;
};

// The ranks made different calls: `peer` another one than this rank.
struct Disagreement {
  int peer;
};

}  // namespace ringreduce
