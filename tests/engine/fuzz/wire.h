// A transport whose peers are the fuzzer: it says which frames come, in which order they are read and
// written, and who is lost. Two connections lead to each peer, and a frame of one may overtake those of the
// other.
#pragma once

#include <deque>
#include <vector>

#include "input.h"
#include "transport/remote/remote.h"

namespace ringreduce::fuzz {

class Wire final : public RemoteTransport {
 public:
  Wire(int rank, int world, Input& input)
      : RemoteTransport("wire", rank, world, true), input_(input), peers_(static_cast<std::size_t>(world)) {}
  ~Wire() override {
    for (int peer = 0; peer < world; ++peer) abandon(peer);
  }

  // Something happens at one of the peers.
  void step();

  std::unique_ptr<Transport> among(int, int, const Exchange&) override { return nullptr; }
  void close() override {
    const Lock lock(mutex_);
    control_.say_bye();
  }

 private:
  struct Connection {
    bool in_frame = false;
    FrameHeader header;
    Landing landing;
  };
  struct Peer {
    Connection connections[2];
    std::deque<Outgoing> queue;  // taken, and not written yet
  };

  void dispatch(int peer) override;
  bool progress(Lock& lock, Clock::duration limit) override;
  void interrupt() override {}
  void look_after(int) override {}
  void withdraw() override;
  bool connected(int) const override { return true; }

  void move();
  void begin_frame(int peer, Connection& connection);
  void end_frame(int peer, Connection& connection);
  void write(int peer);
  void abandon(int peer);

  Input& input_;
  std::vector<Peer> peers_;
};

}  // namespace ringreduce::fuzz
