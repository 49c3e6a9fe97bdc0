// The threads in which futures complete. A future's callbacks are arbitrary code: they may block, and may
// wait for further collectives and their futures. They must therefore not run in the thread that moves these
// on, nor wait for each other.
#pragma once

#include <functional>

namespace ringreduce::torch_backend {

// Runs `what` soon, in a thread that does nothing else meanwhile. `to_the_end`: it ends by itself within a
// minute, and the end of the process must not cut it off.
void call_back(std::function<void()> what, bool to_the_end = false);

// Waits until everything has run, at most this long except for what must not be cut off. For the end of the
// process.
void finish_callbacks(int milliseconds);

}  // namespace ringreduce::torch_backend
