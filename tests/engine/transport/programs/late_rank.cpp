// Two ranks exchange messages. Rank 1 comes so late each time that its message is already there. Prints what
// both then know of their distance, in ns.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "transport/memory/local.h"

using namespace ringreduce;

namespace {

constexpr int lane = 0;
constexpr std::uint64_t contract = 1;

void send(Transport& transport, int peer) {
  const char byte = 0;
  if (!transport.send(lane, {&peer, 1}, &byte, sizeof byte, contract)) std::abort();
}

int known(const Transport& transport, int peer) {
  return dynamic_cast<const MappedTransport&>(transport).distance_to(peer);
}

}  // namespace

int main() {
  const auto ranks = LocalTransport::group(2);
  for (const auto& rank : ranks) rank->sense(lane, true);
  std::atomic<int> sent{0};
  std::atomic<bool> over{false};

  std::thread late([&] {
    for (int round = 1; !over; ++round) {
      while (sent < round && !over) std::this_thread::yield();
      if (over) return;
      Message message;
      if (!ranks[1]->poll(lane, 0, message)) std::abort();
      ranks[1]->release(lane, 0);
      send(*ranks[1], 0);
    }
  });
  // If the cores are busy, it takes many rounds until one of them finds both ranks running.
  const auto end = Clock::now() + std::chrono::seconds(30);
  for (int measured = 0; measured < 10 && Clock::now() < end; measured += known(*ranks[0], 1) > 0) {
    send(*ranks[0], 1);
    ++sent;
    for (Message message; !ranks[0]->poll(lane, 1, message);) {
    }
    ranks[0]->release(lane, 1);
  }
  over = true;
  late.join();
  std::printf("%d %d\n", known(*ranks[0], 1), known(*ranks[1], 0));
}
