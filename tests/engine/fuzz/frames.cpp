// Frames of two peers, whatever they say, while this rank sends, receives, asks, and fails.
#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "wire.h"

namespace ringreduce::fuzz {
namespace {

using Memory = std::array<std::byte, 4096>;  // the caller's

int a_peer(Input& input) {
  return input.below(2) * 2;
}

void read_message(Wire& wire, Input& input) {
  const int lane = input.below(Transport::lanes), peer = a_peer(input);
  Message message;
  if (!wire.poll(lane, peer, message)) return;
  if (message.data) std::ignore = std::count(message.data, message.data + message.bytes, std::byte{1});
  wire.release(lane, peer);
}

void send_message(Wire& wire, Input& input, const Memory& memory) {
  const int lane = input.below(Transport::lanes), what = input.below(8);
  const std::size_t bytes = input.take<std::uint16_t>() % memory.size();
  const std::vector<int> peers = what < 2 ? std::vector<int>{0, 2} : std::vector<int>{what % 2 * 2};
  const auto contract = input.take<std::uint8_t>();
  if (what % 3 == 0) {
    wire.lend(lane, peers, memory.data(), bytes, contract, nullptr);
  } else {
    wire.send(lane, peers, memory.data(), bytes, contract);
  }
}

// Of a wait that has gone on for long.
void look_around(Wire& wire, Input& input) {
  Backoff backoff;
  backoff.rounds = 100;
  backoff.since = backoff.checked = Clock::now() - std::chrono::seconds(10);
  wire.pause(backoff, input.below(2) ? -1 : a_peer(input));
}

void act(Wire& wire, Input& input, Memory& memory) {
  switch (input.below(12)) {
    case 0:
      return send_message(wire, input, memory);
    case 1:
    case 2:
      return read_message(wire, input);
    case 3: {
      const int lane = input.below(Transport::lanes), peer = a_peer(input);
      return wire.place(lane, peer, memory.data(), input.take<std::uint16_t>() % memory.size(),
                        input.take<std::uint8_t>());
    }
    case 4:
      return wire.record(input.take<Record>());
    case 5:
      if (input.below(4) > 0) return look_around(wire, input);
      std::ignore = wire.records(a_peer(input));
      std::ignore = wire.waits_for(a_peer(input), std::chrono::seconds(1));
      return;
    case 6: {
      const int what = input.below(32);
      if (what == 0) return wire.abort(Failure(Cause::timeout, 2, input.text(40)));
      if (what == 1) return wire.close();
      return wire.check();
    }
    default:
      return wire.step();
  }
}

}  // namespace
}  // namespace ringreduce::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ringreduce;
  fuzz::Input input(data, size);
  fuzz::Memory memory{};
  fuzz::Wire wire(1, 3, input);
  try {
    while (!input.empty()) fuzz::act(wire, input, memory);
  } catch (const fuzz::Ended&) {
  } catch (const Error&) {
  } catch (const Disagreement&) {
  }
  return 0;
}
