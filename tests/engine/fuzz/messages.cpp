// Messages between two ranks: envelopes, offers and bodies of peers that say anything.
#include <array>
#include <tuple>
#include <vector>

#include "engine/messages/point_to_point.h"
#include "wire.h"

namespace ringreduce::fuzz {
namespace {

using Memory = std::vector<std::byte>;  // the caller's

Transfer a_transfer(Input& input, const Memory& out, Memory& in) {
  Transfer transfer;
  transfer.sends = input.below(3) == 0;
  transfer.peer = input.below(2) * 2;
  if (!transfer.sends && input.below(4) == 0) transfer.peer = any_source;
  transfer.data = transfer.sends ? const_cast<std::byte*>(out.data()) : in.data();
  transfer.dtype = static_cast<DType>(input.below(dtype_count));
  transfer.tag = input.below(3);
  transfer.count = input.take<std::uint16_t>() % 256;
  if (input.below(4) == 0) transfer.count = in.size();  // a body of its own
  transfer.count /= size_of(transfer.dtype);
  return transfer;
}

void act(Wire& wire, PointToPoint& messages, Input& input, const Memory& out, Memory& in) {
  switch (input.below(8)) {
    case 0:
    case 1: {
      const Transfer transfer = a_transfer(input, out, in);
      if (!transfer.sends || !messages.send_at_once(transfer)) messages.enqueue(transfer);
      return;
    }
    case 2:
    case 3:
      messages.advance();
      return;
    case 4:
      messages.look_around();
      std::ignore = messages.not_asked_for(any_source);
      return;
    default:
      return wire.step();
  }
}

}  // namespace
}  // namespace ringreduce::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ringreduce;
  static const fuzz::Memory out(128 << 10);
  static fuzz::Memory in(128 << 10);
  fuzz::Input input(data, size);
  fuzz::Wire wire(1, 3, input);
  PointToPoint messages(wire);
  try {
    while (!input.empty()) fuzz::act(wire, messages, input, out, in);
  } catch (const fuzz::Ended&) {
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {  // a peer may announce what no memory holds
  }
  messages.drop(nullptr);
  return 0;
}
