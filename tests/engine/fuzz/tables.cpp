// What peers tell as plain data: records of their calls, boards, addresses, and what links were measured to
// be worth.
#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <vector>

#include "engine/planning/description.h"
#include "engine/planning/links.h"
#include "input.h"
#include "transport/interface/board.h"
#include "transport/tcp/addresses.h"

namespace ringreduce::fuzz {
namespace {

void require(bool good) {
  if (!good) std::abort();
}

void read_links(Input& input) {
  Links links;
  links.world = 1 + input.below(12);
  const std::size_t pairs = static_cast<std::size_t>(links.world) * static_cast<std::size_t>(links.world);
  for (std::size_t i = 0; i < pairs; ++i) {
    links.latency.push_back(input.take<double>());
    links.bandwidth.push_back(input.take<double>());
  }
  std::vector<int> hosts;
  for (int rank = 0; rank < links.world; ++rank) hosts.push_back(input.below(links.world));
  std::vector<int> order = ring_order(links, hosts);
  std::sort(order.begin(), order.end());
  for (int rank = 0; !order.empty() && rank < links.world; ++rank) require(order.at(rank) == rank);
  require(pace(links) >= 1);
  std::ignore = links.among({0, links.world - 1});
}

void read_addresses(Input& input) {
  std::vector<Address> theirs(static_cast<std::size_t>(input.below(5))), own(2);
  for (Address& address : theirs) address = input.take<Address>();
  for (Address& address : own) address = input.take<Address>();
  for (const Address& address : order_to_try(theirs, own, input.below(2) == 1)) {
    std::ignore = in_words(address);
    sockaddr_storage out;
    require(to_socket(address, out) <= sizeof out);
  }
}

void read_board(Input& input) {
  const int world = 1 + input.below(256);
  const auto board = unpacked(input.text(1024), world);
  if (!board) return;
  const auto again = unpacked(packed(*board), world);
  require(again && again->alive == board->alive && again->blob == board->blob);
}

}  // namespace
}  // namespace ringreduce::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ringreduce;
  fuzz::Input input(data, size);
  switch (input.below(4)) {
    case 0:
      std::ignore = in_words(input.take<Record>());
      break;
    case 1:
      fuzz::read_links(input);
      break;
    case 2:
      fuzz::read_addresses(input);
      break;
    default:
      fuzz::read_board(input);
  }
  return 0;
}
