// The interface of a wire for RemoteTransport: how frames reach a peer, and how it learns that a peer is
// dead.
#pragma once

#include <mutex>
#include <string_view>

#include "transport/interface/transport.h"
#include "transport/remote/brief_lock.h"
#include "transport/remote/frame.h"

namespace ringreduce {

using Lock = std::unique_lock<BriefLock>;

// All functions are called with the transport's lock held.
class Wire {
 public:
  // Moves as many frames for a peer as go at once. Each Outbox::take() must end with Frames::written().
  virtual void dispatch(int peer) = 0;
  // Sends a small frame, whose bytes it copies, although it has not been in the outbox, if that needs no
  // waiting. False: it must go there.
  virtual bool send_at_once(int, const Outgoing&) { return false; }
  // Moves everything that can move, both ways. Waits up to `limit` for something to do, without the lock.
  // True if anything moved.
  virtual bool progress(Lock& lock, Clock::duration limit) = 0;
  // Whether a progress() that does not wait costs no system call, so that it may be called again and again.
  virtual bool looks_quickly() const { return false; }
  // Ends a progress() that waits in another thread.
  virtual void interrupt() = 0;
  // Finds out whether a silent peer lives; if not, calls ControlMessages::lost() sooner or later.
  virtual void look_after(int peer) = 0;
  // The caller may take its memory back: incoming bytes go elsewhere from now on, and of lent memory only
  // frames that peers have begun to receive are sent, from memory of ours.
  virtual void withdraw() = 0;
  // A peer says where it receives messages, if the wire has other ways for them than for control. Throws
  // Error if it has not.
  virtual void hear_endpoint(int, std::string_view) { throw Error("an endpoint that nothing needs"); }
  // Whether frames have been exchanged with a peer.
  virtual bool connected(int peer) const = 0;
  // A failure has ended the calls. Ranks that do not know yet may come later, and must be told while this
  // rank may do something else.
  virtual void answer_latecomers() {}

 protected:
  ~Wire() = default;
};

}  // namespace ringreduce
