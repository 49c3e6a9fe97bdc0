// What one asks of a communicator.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/program/extents.h"
#include "reduce/dtype.h"
#include "reduce/encoding.h"
#include "schedule/schedule.h"

namespace ringreduce {

inline constexpr int automatic = -1;
inline constexpr int by_nccl = -2;  // not a schedule of ours: NCCL's own way, of arrays in GPU memory
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
  double factor = 1;  // of premul_sum
  int root = 0;
  int algorithm = automatic;
  // What messages are encoded as, if not as they are: of dtypes that it takes(). All that several ranks end
  // with is the same on all of them, and so also on who had the exact values.
  Encoding wire = Encoding::none;
  std::size_t slice_bytes = 0;  // of one round's messages in one slice; 0: as measured best
  int lanes = 0;                // slices in flight, at most Transport::collective_lanes; 0: as measured best
  // Uneven blocks: elements and offsets per rank, of the input and of the output. For all collectives but
  // all_to_all both are the same object.
  const Extents* input_extents = nullptr;
  const Extents* output_extents = nullptr;
  std::chrono::steady_clock::duration timeout{};  // zero: the communicator's
  // Of several arrays that go together: how many there are, in the upper 16 bits, and a hash of their
  // lengths. Ranks must agree.
  std::uint64_t split = 0;
  int device = on_host;  // whose memory the arrays are in: a GPU's, by its number
};

// Whether it has a root.
bool rooted(Collective collective);
// Of such blocks only the two ends of each message know the length.
bool is_uneven_all_to_all(const Call& call);

// Bytes of this rank's arrays.
std::size_t bytes_of_input(const Call& call, int world, int rank);
std::size_t bytes_of_output(const Call& call, int world, int rank);

// Where all ranks' blocks would begin, if what holds only this rank's had the others' around it.
const std::byte* input_of_all(const Call& call, int rank);
std::byte* output_of_all(const Call& call, int rank);

inline constexpr int any_source = -1;

// A message to or from one rank.
struct Transfer {
  bool sends = true;
  int peer = 0;           // of a receive: may be any_source
  void* data = nullptr;   // a send only reads there
  std::size_t count = 0;  // elements
  DType dtype = DType::float32;
  int tag = 0;
  std::chrono::steady_clock::duration timeout{};  // zero: the communicator's

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Several collectives as one, with something to do before, between and after them. No other collective of the
// communicator comes in between. Blocking, all of it happens in the caller's thread, else in the progress
// thread.
class Steps {
 public:
  virtual ~Steps() = default;
  // Called when the call before, if any, is complete: fills in the next one, or says with false that there is
  // none. What the call points to must stay until the next() after it. What this throws, but for
  // InvalidArgument in the first place, ends the group: the other ranks are in the middle of something.
  virtual bool next(Call& call) = 0;
};

}  // namespace ringreduce
