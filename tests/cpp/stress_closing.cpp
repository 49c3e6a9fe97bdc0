// What a wait makes of peers that have closed.
#include "stress.h"
#include "transport/memory/local.h"

namespace stress {

// Each peer that has closed is looked at twice, for it may have sent before. That another had closed, too,
// says nothing of it.
void closing() {
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
