// What is recorded on streams instead of being run. Captures are as strict as CUDA's: while one is under way,
// what could wait for a device is forbidden to its thread and, if it is global, to all others.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace ringreduce::emulated {

using Work = std::function<void()>;
class Stream;
struct Capture;

struct Graph {
  std::vector<Work> work;  // in the order in which it was put into streams
  std::vector<std::shared_ptr<void>> held;
};

// Null unless the stream is captured.
std::shared_ptr<Capture> capture_of(const Stream& stream);
// Takes work for a graph if the stream is captured. Otherwise false.
bool take_for_capture(const Stream& stream, const Work& work);
// What is put into the stream from now on is of this capture, too: it waits for an event of it.
void join_capture(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture);

// Throws std::runtime_error, and spoils the captures, if `what` is forbidden to the calling thread.
void refuse_during_capture(const char* what);
// The same for the use of a device's legacy default stream, which waits for its blocking streams.
void refuse_beside_capture(int device);

}  // namespace ringreduce::emulated
