// The library's log, for RINGREDUCE_LOG or Python's logging (ringreduce/log.py). The path of small messages
// writes no lines.
#pragma once

#include <optional>
#include <string>

namespace ringreduce::log {

enum class Level : int { debug = 10, info = 20, warning = 30 };  // the numbers of Python's logging

// Whether lines of this level are wanted. One load.
bool says(Level level);
// Writes "ringreduce[rank 3] info: text", in one piece. Waits for no other thread, and may be called
// anywhere.
void say(Level level, const std::string& who, const std::string& text);

// Writes to stderr in one piece, and nothing if the process was started without: then 2 may be any of its
// files.
void write_to_stderr(const std::string& text);
void forget_stderr();

// The level of RINGREDUCE_LOG, or nullopt if it is not set. Throws InvalidArgument for an unknown level.
std::optional<Level> by_environment();
// If it is set, sends lines of that level and above to stderr.
void follow_environment();
// Sends lines of a level and above to stderr, or to a pipe, as records that end with a zero byte ("20rank 3
// text").
void send_to_stderr(Level from);
void send_to_pipe(Level from, int descriptor);

}  // namespace ringreduce::log
