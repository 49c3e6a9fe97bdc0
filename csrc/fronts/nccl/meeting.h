// How the ranks of a communicator meet: at a socket of the process that made the unique id.
//
// Rank                                           Host, where the unique id was made
//   greeting (build, rank, world, random number)   ->
//                                                  <-   random number, HMAC(secret, "accept" + both)
//   HMAC(secret, "dial" + both)                    ->
// Then each rank sends a blob, and receives all ranks' blobs, as often as all of them exchange.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/libnccl/entry_points.h"
#include "transport/interface/descriptor.h"
#include "transport/interface/transport.h"
#include "transport/tcp/stream.h"

namespace ringreduce::nccl_api {

// The contents of a unique id. Its owners belong to the job.
struct Invitation {
  static constexpr std::size_t most_addresses = 3;

  char magic[8];
  Build build;
  char secret[16];
  Address addresses[most_addresses];  // entries of family 0 are unused
};
static_assert(sizeof(Invitation) <= sizeof(nccl::UniqueId));

// The words of both ends before they are trusted.
struct Greeting {
  char magic[8];
  Build build;
  std::int32_t rank, world;
  char nonce[16];
};
struct Answer {
  char nonce[16];
  Digest proof;
};

// A message after that.
struct Frame {
  enum Kind : std::uint32_t { blob, failure };
  Kind kind;
  std::uint32_t bytes;
};
inline constexpr std::uint32_t longest_blob = 1 << 20;
inline constexpr std::chrono::minutes patience{30};  // with late ranks

// What both ends prove to each other.
Proof proof_over(const Invitation& invitation, const Greeting& greeting, const Answer& answer);

// Sends as much as the other end takes until then.
void send_all(int fd, std::string_view bytes, Clock::time_point until);

// Opens the socket. A thread of this process serves it until the ranks have met, or forever if none comes.
nccl::UniqueId invite();

// Throws Refusal if another library, or another build of this one, made it.
Invitation read(const nccl::UniqueId& id);

// A rank's end of the meeting.
class Seat {
 public:
  // Throws Refusal if the host cannot be reached, or is not the right one.
  Seat(const Invitation& invitation, int rank, int world);
  // Throws Refusal on all ranks if one of them has left, or did not come.
  std::vector<std::string> exchange(const std::string& blob);

 private:
  bool dial(const Address& address);
  void greet(const Invitation& invitation);
  void hear(void* bytes, std::size_t count);

  const int rank_, world_;
  const Clock::time_point until_ = Clock::now() + patience + std::chrono::seconds(10);
  Descriptor socket_;
  std::string problem_;
};

}  // namespace ringreduce::nccl_api
