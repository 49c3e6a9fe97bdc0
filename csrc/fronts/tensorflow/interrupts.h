// Ctrl-C in calls that TensorFlow makes outside Python's main thread. There, that thread waits inside
// TensorFlow, so Python cannot run its handler before the call has ended.
#pragma once

namespace ringreduce {

// While one exists, SIGINT interrupts the long waits of its thread, if Python's handler is the one that
// raises KeyboardInterrupt. Python raises it when TensorFlow has returned.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

}  // namespace ringreduce
