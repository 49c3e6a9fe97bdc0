// All frames between this rank and its peers, as a wire carries them: messages and words.
#pragma once

#include "transport/remote/words.h"

namespace ringreduce {

// Not for several threads at once.
class Frames {
 public:
  Frames(Transport& group, Wire& wire)
      : outbox(group.world, wire), messages(group.world, outbox), words(group, wire, outbox, messages) {}

  // Each that was taken from the outbox has been written at last, or nobody is there to read it.
  void written(int peer, const Outgoing& frame);
  // For a peer that has left: what is to go there counts as written.
  void discard(int peer);
  // Whether a frame that has not begun must not be sent any more, because it lies in the caller's memory; it
  // is forgotten then.
  bool drop(int peer, const Outgoing& frame);
  // Where one that comes belongs. Throws Error where no rank sends such a frame.
  Landing land(int peer, const FrameHeader& header);
  void landed(int peer, const FrameHeader& header, const Landing& landing);

  Outbox outbox;
  Messages messages;
  Words words;
};

}  // namespace ringreduce
