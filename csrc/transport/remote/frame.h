// Frames between ranks that share no memory: a header, and the bytes that it announces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/remote/pool.h"

namespace ringreduce {

// Increase it with every change of what ranks send each other: hellos, frames, records.
constexpr int protocol = 4;

enum class FrameKind : std::uint8_t {
  message,  // on a lane, or a piece of one; its number is `number`, from 1
  credit,   // the sender has finished with the first `number` messages of the lane
  query,    // the sender asks for a status
  status,   // the sender's recent calls
  abort,    // ends every rank's waits
  board,    // the sender's part of an agreement on survivors
  bye,  // the sender sends nothing more; the numbers of messages it has sent, by lane, and its abort, if any
  endpoint,  // where else the sender receives messages; see Wire::hear_endpoint()
};

struct FrameHeader {
  std::uint32_t bytes = 0;  // that follow the header
  FrameKind kind{};
  std::uint8_t lane = 0;
  std::uint16_t header_check = 0;  // of the rest of the header, if the transport checks frames
  std::uint32_t number = 0;
  std::uint32_t check = 0;  // of the header without these two, and of the bytes that follow
  std::uint64_t contract = 0;
  std::uint32_t begin = 0;  // of the piece in the message
  std::uint32_t whole = 0;  // bytes of the message
  bool is_piece() const { return bytes != whole; }
};
static_assert(std::is_trivially_copyable_v<FrameHeader> && sizeof(FrameHeader) == 32);

// A frame in flight to a peer.
struct Outgoing {
  FrameHeader header;
  const std::byte* data = nullptr;  // header.bytes of them
  Buffer* buffer = nullptr;         // the buffer that contains them, if it is ours
  bool is_lent() const { return header.bytes > 0 && !buffer; }
};

}  // namespace ringreduce
