// What a kind of wire adds to RemoteTransport: how frames get to a peer, and how one learns that it is dead.
#pragma once

#include <mutex>

#include "transport/interface/transport.h"
#include "transport/remote/brief_lock.h"

namespace ringreduce {

using Lock = std::unique_lock<BriefLock>;

// All of it is called with the transport's lock held.
class Wire {
 public:
  // Moves frames for a peer on, as many as go at once: each Outbox::take() is to end with Frames::written().
  virtual void dispatch(int peer) = 0;
  // Moves whatever can move, both ways; waits up to `limit` for something to do, without the lock. True if
  // anything moved.
  virtual bool progress(Lock& lock, Clock::duration limit) = 0;
  // Ends a progress() that waits in another thread.
  virtual void interrupt() = 0;
  // Finds out whether a silent peer lives: sooner or later calls Words::lost() if not.
  virtual void look_after(int peer) = 0;
  // The caller may take its memory away: what is received goes elsewhere from now on, and of what was lent
  // only frames that peers have had the beginning of are sent, from memory of ours.
  virtual void withdraw() = 0;
  // Whether frames have gone to or come from a peer.
  virtual bool connected(int peer) const = 0;
  // The calls have ended by a failure. Ranks that do not know yet may come later, and must find somebody who
  // tells them, while this rank may do something else.
  virtual void answer_latecomers() {}

 protected:
  ~Wire() = default;
};

}  // namespace ringreduce
