// Calls to a communicator: collectives, messages, and sequences of collectives.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/program/extents.h"
#include "reduce/dtype.h"
#include "reduce/encoding.h"
#include "reduce/user_op.h"
#include "schedule/schedule.h"

namespace ringreduce {

inline constexpr int automatic = -1;
inline constexpr int by_nccl = -2;  // no schedule, but NCCL's own collectives, for arrays in GPU memory
inline constexpr int on_host = -1;

// One collective call. `count` is in elements: of the whole buffer for all_reduce, broadcast and reduce, of
// one rank's block for the others (whose uneven forms take extents instead).
struct Call {
  Collective collective = Collective::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  DType dtype = DType::float32;
  Op op = Op::sum;
  // Multiplies this rank's values before they are summed. Ranks' factors may differ.
  std::optional<double> factor = std::nullopt;
  int root = 0;
  int algorithm = automatic;
  // The encoding of messages, for dtypes that it takes(). A result that several ranks hold is the same on all
  // of them, including the ranks that had the exact values.
  Encoding wire = Encoding::none;
  std::size_t slice_bytes = 0;  // of one round's messages in one slice; 0: the measured best
  int lanes = 0;                // slices in flight, at most Transport::collective_lanes; 0: the measured best
  // Uneven blocks: elements and offsets per rank, of the input and of the output. Both are the same object
  // except in all_to_all.
  const Extents* input_extents = nullptr;
  const Extents* output_extents = nullptr;
  // Of gather and scatter: a rank that is not the root knows no extents but its own, with offset 0.
  bool blind = false;
  std::chrono::steady_clock::duration timeout{};  // zero: the communicator's timeout
  // For several arrays in one call: their number, in the upper 16 bits, and a hash of their lengths. Or, with
  // no number, in_registered_memory(). Ranks must agree.
  std::uint64_t split = 0;
  int bucket = -1;       // the number of the bucket of gradients that it is for, in error messages; -1: none
  int device = on_host;  // the device that holds the arrays: the number of a GPU, or on_host
  const UserOp* user_op = nullptr;  // instead of `op`; stays until the call is over
};

// Where a call's arrays lie: so many bytes behind the begin of the memory that was registered as the n-th.
inline constexpr int number_of_memory_at = 38;
inline constexpr std::uint64_t in_place_there = std::uint64_t{1} << 47;
constexpr std::uint64_t in_registered_memory(std::uint64_t number, std::uint64_t offset, bool in_place) {
  constexpr std::uint64_t numbers = in_place_there >> number_of_memory_at;
  return (in_place ? in_place_there : 0) | (number % (numbers - 1) + 1) << number_of_memory_at | offset;
}

// Bytes of an element.
inline std::size_t element_of(const Call& call) {
  if (call.user_op && call.user_op->element > 0) [[unlikely]]
    return call.user_op->element;
  return size_of(call.dtype);
}

// Whether only the two ends of each message know the lengths of its blocks: the blind, and every uneven
// all_to_all.
bool is_blind(const Call& call);

// Whether the input, or the output, has only this rank's block.
bool has_own_block_only(const Call& call, bool of_input);
// Bytes of this rank's arrays.
std::size_t bytes_of_input(const Call& call, int world, int rank);
std::size_t bytes_of_output(const Call& call, int world, int rank);

// Whether no rank contributes to this rank's result, so that it is the op's identity, or
// nothing if the output is null.
inline bool gets_identity(const Call& call, int rank) {
  return rank == 0 && contents(call.collective, false) == Holds::before_own && !call.user_op;
}
void write_identity(const Call& call);

// How many bytes before this rank's arrays all ranks' blocks would begin, if the others' lay around its own.
std::size_t before_input(const Call& call, int rank);
std::size_t before_output(const Call& call, int rank);
// Where they would begin. No address of an object, so not computed as one.
inline std::byte* moved_back(const void* array, std::size_t bytes) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(array) - bytes);
}
inline const std::byte* input_of_all(const Call& call, int rank) {
  return moved_back(call.input, before_input(call, rank));
}
inline std::byte* output_of_all(const Call& call, int rank) {
  return moved_back(call.output, before_output(call, rank));
}

// Owns the arrays of a call in the background. The engine drops it when it no longer touches them, in any
// thread, and before it says that the call is over.
using Arrays = std::shared_ptr<const void>;

inline constexpr int any_source = -1;

// A message to or from one rank.
struct Transfer {
  bool sends = true;
  int peer = 0;           // of a receive: any_source is allowed
  void* data = nullptr;   // a send only reads it
  std::size_t count = 0;  // elements
  DType dtype = DType::float32;
  int tag = 0;
  std::chrono::steady_clock::duration timeout{};  // zero: the communicator's timeout

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Several collectives that run as one, with work before, between and after them. No other collective of the
// communicator comes in between. A blocking call runs all of it in the caller's thread, others in the
// progress thread.
class Steps {
 public:
  virtual ~Steps() = default;
  // Called when the previous call is complete, or first. Fills in the next call, or returns false if there is
  // none. What the call points to must stay valid until the following next(). Exceptions end the group,
  // because the other ranks are in the middle of the operation; only an InvalidArgument from the first next()
  // does not.
  virtual bool next(Call& call) = 0;
  // After the last next(): why all ranks alike have found that the operation cannot be done. The group stays
  // usable.
  virtual std::exception_ptr refusal() const { return nullptr; }
};

}  // namespace ringreduce
