// What the executor does where messages are encoded. Nothing is lent: what peers read is not in the arrays.
// Data is taken in pieces that stay in the first-level cache while they are decoded, combined and encoded.
#include <algorithm>

#include "engine/cpu/executor.h"

namespace ringreduce {
namespace {

constexpr std::size_t piece = 8 * encoded_block;  // values
constexpr std::size_t piece_bytes = piece * sizeof(float);

const float* values(const void* at) {
  return static_cast<const float*>(at);
}

// Calls visit(first value, number of values) for each piece.
template <class Visit>
void in_pieces(std::size_t count, Visit visit) {
  for (std::size_t at = 0; at < count; at += piece) visit(at, std::min(piece, count - at));
}

}  // namespace

void Executor::prepare_coded() {
  codec_ = codec_for(task_.wire);
  const std::size_t pieces = static_cast<std::size_t>(transport_.world) + 1;
  if (decoded_.size() < pieces * piece_bytes) decoded_.resize(pieces * piece_bytes);
}

bool Executor::send_coded(Cursor& cursor, const Action& action) {
  if (cursor.state[action.step - task_.program->steps.data()] != pending) return true;
  const Peers peers(action.peers, action.peer_count);
  std::byte* const room = transport_.reserve(cursor.lane, peers, action.bytes);
  if (!room) return wait_for_room(cursor, peers);
  std::byte* to = room;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    encode_move(cursor, *move, to);
    to += encoded_bytes(task_.wire, move->count);
  }
  transport_.post(cursor.lane, peers, room, action.bytes, task_.contract);
  return true;
}

void Executor::encode_move(Cursor& cursor, const Move& move, std::byte* to) {
  const std::byte* from = cursor.base[static_cast<int>(move.from)] + move.source;
  std::byte* home = cursor.base[static_cast<int>(move.to)] + move.target;
  in_pieces(move.count, [&](std::size_t at, std::size_t count) {
    const void* source = from + at * sizeof(float);
    std::byte* const message = to + encoded_bytes(task_.wire, at);
    if (task_.scale && move.from == Memory::input) {
      void* scaled = decoded_.data();
      task_.scale(&scaled, 1, &source, 1, count, task_.factor);
      source = scaled;
    }
    codec_.encode(message, values(source), count);
    if (move.quantize) codec_.decode(reinterpret_cast<float*>(home) + at, message, count);
  });
}

// Where the fused send's message can be written while it is being made, or null.
std::byte* Executor::room_for_fused(Cursor& cursor, const Action& action) {
  const Step& step = *action.step;
  if (step.fused < 0 || action.bytes == 0 || state_of(cursor, step.fused) != pending) return nullptr;
  const Action& send = cursor.actions[step.fused];
  const Peers peers(send.peers, static_cast<std::size_t>(send.peer_count));
  return transport_.reserve(cursor.lane, peers, action.bytes);
}

void Executor::combine_coded(Cursor& cursor, const Action& action) {
  std::byte* const room = room_for_fused(cursor, action);
  std::size_t done = 0;  // bytes of the message
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    combine_move_coded(cursor, action, *move, done, room);
    done += encoded_bytes(task_.wire, move->count);
  }
  if (room) carried(cursor, action, room, false);
}

// Each peer's piece is decoded beside those of the others, and all are combined in one pass.
void Executor::combine_move_coded(Cursor& cursor, const Action& action, const Move& move, std::size_t done,
                                  std::byte* room) {
  const Combine function = move.last ? task_.last : task_.combine;
  const std::byte* const own_values = cursor.base[static_cast<int>(move.from)] + move.source;
  std::byte* const home_values = cursor.base[static_cast<int>(move.to)] + move.target;
  std::byte* const spare = decoded_.data() + static_cast<std::size_t>(transport_.world) * piece_bytes;
  in_pieces(move.count, [&](std::size_t at, std::size_t count) {
    const void* own = own_values + at * sizeof(float);
    void* home = home_values + at * sizeof(float);
    const std::size_t encoded = done + encoded_bytes(task_.wire, at);
    if (task_.scale && move.from == Memory::input) {
      task_.scale(&home, 1, &own, 1, count, task_.factor);
      own = home;
    }
    for (int k = 0; k < action.peer_count; ++k) {
      sources_[k] = own;
      if (action.peers[k] < 0) continue;
      std::byte* const decoded = decoded_.data() + static_cast<std::size_t>(k) * piece_bytes;
      codec_.decode(reinterpret_cast<float*>(decoded), messages_[k].data + encoded, count);
      sources_[k] = decoded;
    }
    function(&home, 1, sources_.data(), action.peer_count, count, task_.divide);
    std::byte* const message = room ? room + encoded : spare;
    if (room || move.quantize) codec_.encode(message, values(home), count);
    if (move.quantize) codec_.decode(static_cast<float*>(home), message, count);
  });
}

bool Executor::receive_coded(Cursor& cursor, const Action& action) {
  Message& message = messages_[0];
  if (!arrived(cursor, action.peers[0], action.bytes, message)) return false;
  if (std::byte* const room = room_for_fused(cursor, action)) {
    void* target = room;
    copy(&target, 1, message.data, action.bytes);
    carried(cursor, action, room, false);
  }
  const std::byte* from = message.data;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    std::byte* const home = cursor.base[static_cast<int>(move->to)] + move->target;
    codec_.decode(reinterpret_cast<float*>(home), from, move->count);
    from += encoded_bytes(task_.wire, move->count);
  }
  transport_.release(cursor.lane, action.peers[0]);
  return true;
}

bool Executor::local_coded(Cursor& cursor, const Action& action) {
  if (!local(cursor, action)) return false;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    if (!move->quantize) continue;
    auto* const home = reinterpret_cast<float*>(cursor.base[static_cast<int>(move->to)] + move->target);
    in_pieces(move->count, [&](std::size_t at, std::size_t count) {
      codec_.encode(decoded_.data(), home + at, count);
      codec_.decode(home + at, decoded_.data(), count);
    });
  }
  return true;
}

}  // namespace ringreduce
