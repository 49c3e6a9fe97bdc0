// The threads in which futures complete. A future's callbacks are arbitrary code: they may block, and may
// wait for further collectives and their futures. They must therefore not run in the thread that moves these
// on, nor wait for each other.
#pragma once

#include <functional>

namespace ringreduce::torch_backend {

// Runs `what` soon, in a thread that runs nothing else at that time.
void call_back(std::function<void()> what);

// Waits until everything has run, as Python's end waits for its threads; nothing runs afterwards. Callbacks
// that Python ends halfway would abort the process. Calls `tick` now and then, which may throw.
void finish_callbacks(const std::function<void()>& tick);

}  // namespace ringreduce::torch_backend
