// The threads in which futures complete. A future's callbacks are anybody's code: they may block, and may
// wait for further collectives and their futures, so they must not run in the thread that moves these on,
// nor wait for one another.
#pragma once

#include <functional>

namespace ringreduce::torch_backend {

// Runs it soon, in a thread that does nothing else meanwhile. `to_the_end`: it ends by itself within a minute
// and must not be cut off by the end of the process.
void call_back(std::function<void()> what, bool to_the_end = false);

// Waits until all that was given has run, at most this long but for what must not be cut off; for the end of
// the process.
void finish_callbacks(int milliseconds);

}  // namespace ringreduce::torch_backend
