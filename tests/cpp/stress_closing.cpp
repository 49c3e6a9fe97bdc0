// What a wait makes of peers that have closed.
#include <cstring>

#include "stress.h"
#include "transport/memory/local.h"
#include "transport/remote/remote.h"

namespace stress {
namespace {

// A wire on which frames lie until they are called for, in whatever order.
class SlowWire : public RemoteTransport {
 public:
  explicit SlowWire(int rank) : RemoteTransport(rank, 2, true) {}
  ~SlowWire() override {
    for (const Outgoing& frame : frames_) written(1 - rank, frame);
    forget_frames();
  }

  const char* name() const override { return "slow wire"; }
  std::unique_ptr<Transport> among(int, int, const Exchange&) override { return nullptr; }
  void disown() override {}
  void close() override {
    const Lock lock(mutex_);
    say_bye();
  }
  void hand_over_the_latest(SlowWire& to) {
    const Outgoing frame = frames_.back();
    frames_.pop_back();
    const Landing landing = to.land(rank, frame.header);
    std::memcpy(landing.at, frame.data, frame.header.bytes);
    to.landed(rank, frame.header, landing);
    written(to.rank, frame);
  }

 private:
  void dispatch(int peer) override {
    for (Outgoing frame; take(peer, frame);) frames_.push_back(frame);
  }
  bool progress(Lock&, Clock::duration) override { return false; }
  void interrupt() override {}
  void look_after(int) override {}
  void withdraw() override {}
  bool connected(int) const override { return true; }

  std::vector<Outgoing> frames_;
};

// Who fails and closes is not taken for one that just closed, whatever gets to a peer first.
void bye_before_abort() {
  SlowWire failing(0), waiting(1);
  failing.abort(Failure(Cause::peer_lost, 1, "the cause"));
  failing.close();
  failing.hand_over_the_latest(waiting);
  require(waiting.closed(0), "that a rank has closed");
  try {
    waiting.check();
  } catch (const Failure& failure) {
    require(failure.what() == std::string("the cause"), "why a rank has failed");
    return;
  }
  require(false, "that a rank which closed had failed");
}

}  // namespace

// Each peer that has closed is looked at twice, for it may have sent before. That another had closed, too,
// says nothing of it.
void closing() {
  bye_before_abort();
  const auto ranks = LocalTransport::group(3);
  for (const int peer : {1, 2}) ranks[peer]->close();
  Backoff backoff;
  for (const int peer : {1, 2}) {
    while (backoff.closed_peer != peer) ranks[0]->pause(backoff, peer);
  }
  try {
    while (true) ranks[0]->pause(backoff, 2);
  } catch (const Failure& failure) {
    require(failure.cause == Cause::peer_lost && failure.culprit == 2, "who is waited for and has closed");
  }
}

}  // namespace stress
