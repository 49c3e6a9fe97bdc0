// What the library says of itself while it runs, for whoever wants to know: RINGREDUCE_LOG, or Python's
// logging (ringreduce/log.py). Nothing is said on the way of a small message.
#pragma once

#include <optional>
#include <string>

namespace ringreduce::log {

enum class Level : int { debug = 10, info = 20, warning = 30 };  // the numbers of Python's logging

// Whether anybody wants lines of this level. One load.
bool says(Level level);
// "ringreduce[rank 3] info: text", in one piece. Waits for no other thread, and may be called anywhere.
void say(Level level, const std::string& who, const std::string& text);

// The level of RINGREDUCE_LOG; none where it is not set. Throws InvalidArgument for what is no level.
std::optional<Level> by_environment();
// If it is set, lines go to stderr from that level on.
void follow_environment();
// From a level on, lines go to stderr, or, as records that end with a zero byte ("20rank 3\ntext"), to a
// pipe.
void send_to_stderr(Level from);
void send_to_pipe(Level from, int descriptor);

}  // namespace ringreduce::log
