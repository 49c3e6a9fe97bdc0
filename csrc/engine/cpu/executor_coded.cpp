// How the executor reads and writes memory if messages are encoded. Nothing is lent, because the arrays do
// not hold what peers read. Data is processed in pieces that stay in the first-level cache while they are
// decoded, combined and encoded.
#include <algorithm>

#include "engine/cpu/executor.h"
#include "engine/program/narrow.h"

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
  codec_ = codec_for(task_.plan->wire);
  const std::size_t pieces = static_cast<std::size_t>(transport_.world) + 1;
  make_room(decoded_, pieces * piece_bytes);
}

void Executor::fill_coded(const Cursor& cursor, const Action& action, std::byte* to) {
  for (const Move& move : action.runs()) {
    auto* const home = reinterpret_cast<float*>(cursor.target(move));
    in_pieces(move.count, [&](std::size_t at, std::size_t count) {
      const void* source = cursor.source(move) + at * sizeof(float);
      std::byte* const message = to + encoded_bytes(task_.plan->wire, at);
      if (scales(move)) {
        void* scaled = decoded_.data();
        task_.plan->scale(&scaled, 1, &source, 1, count, task_.factor);
        source = scaled;
      }
      codec_.encode(message, values(source), count);
      if (move.quantize) codec_.decode(home + at, message, count);
    });
    to += encoded_bytes(task_.plan->wire, move.count);
  }
}

void Executor::combine_coded(const Cursor& cursor, const Action& action, std::byte* room) {
  std::size_t done = 0;  // bytes of the message
  for (const Move& move : action.runs()) {
    combine_move_coded(cursor, action, move, done, room);
    done += encoded_bytes(task_.plan->wire, move.count);
  }
}

// Decodes the peers' pieces side by side, and combines all in one pass.
void Executor::combine_move_coded(const Cursor& cursor, const Action& action, const Move& move,
                                  std::size_t done, std::byte* room) {
  const Plan& plan = *task_.plan;
  const Combine function = move.last ? plan.last : plan.combine;
  std::byte* const spare = decoded_.data() + static_cast<std::size_t>(transport_.world) * piece_bytes;
  in_pieces(move.count, [&](std::size_t at, std::size_t count) {
    const void* own = cursor.source(move) + at * sizeof(float);
    void* home = cursor.target(move) + at * sizeof(float);
    const std::size_t encoded = done + encoded_bytes(plan.wire, at);
    if (scales(move)) {
      plan.scale(&home, 1, &own, 1, count, task_.factor);
      own = home;
    }
    for (int k = 0; k < action.peer_count; ++k) {
      sources_[k] = own;
      if (action.peers[k] < 0) continue;
      std::byte* const decoded = decoded_.data() + static_cast<std::size_t>(k) * piece_bytes;
      codec_.decode(reinterpret_cast<float*>(decoded), messages_[k].data + encoded, count);
      sources_[k] = decoded;
    }
    function(&home, 1, sources_.data(), action.peer_count, count, plan.divide);
    std::byte* const message = room ? room + encoded : spare;
    if (room || move.quantize) codec_.encode(message, values(home), count);
    if (move.quantize) codec_.decode(static_cast<float*>(home), message, count);
  });
}

void Executor::receive_coded(const Cursor& cursor, const Action& action, std::byte* room) {
  const std::byte* from = messages_[0].data;
  void* onward = room;
  if (room) copy(&onward, 1, from, action.bytes);
  for (const Move& move : action.runs()) {
    codec_.decode(reinterpret_cast<float*>(cursor.target(move)), from, move.count);
    from += encoded_bytes(task_.plan->wire, move.count);
  }
}

void Executor::quantize(const Cursor& cursor, const Action& action) {
  for (const Move& move : action.runs()) {
    if (!move.quantize) continue;
    auto* const home = reinterpret_cast<float*>(cursor.target(move));
    in_pieces(move.count, [&](std::size_t at, std::size_t count) {
      codec_.encode(decoded_.data(), home + at, count);
      codec_.decode(home + at, decoded_.data(), count);
    });
  }
}

// --- arrays of 16-bit floats -------------------------------------------------------------------------------

void Executor::widen(Cursor& cursor) {
  const Codec cast = codec_for(task_.plan->geometry.narrow);
  cursor.base[static_cast<int>(Memory::input)] = cursor.base[static_cast<int>(Memory::output)] = cursor.wide;
  each_narrow_run(task_.plan->geometry, task_.plan->program->schedule, cursor.slice, Memory::input,
                  [&](std::size_t to, std::size_t from, std::size_t count) {
                    cast.decode(reinterpret_cast<float*>(cursor.wide + to), task_.input + from, count);
                  });
}

void Executor::narrow(const Cursor& cursor) {
  const Codec cast = codec_for(task_.plan->geometry.narrow);
  each_narrow_run(task_.plan->geometry, task_.plan->program->schedule, cursor.slice, Memory::output,
                  [&](std::size_t from, std::size_t to, std::size_t count) {
                    cast.encode(task_.output + to, reinterpret_cast<const float*>(cursor.wide + from), count);
                  });
}

}  // namespace ringreduce
