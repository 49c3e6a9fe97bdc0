#include "transport/interface/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "transport/interface/cut.h"
#include "transport/interface/environment.h"

namespace ringreduce::log {
namespace {

constexpr std::size_t longest_record = 4000;  // a pipe takes this many bytes in one piece
constexpr int no_pipe = -1;
constexpr const char* names[] = {"debug", "info", "warning"};

std::atomic<Level> least{Level::warning};
std::atomic<int> pipe_of_records{no_pipe};
std::atomic<bool> has_stderr{fcntl(STDERR_FILENO, F_GETFD) >= 0};

void send(Level from, int pipe) {
  pipe_of_records = pipe;
  least = from;
}

}  // namespace

bool says(Level level) {
  return level >= least.load(std::memory_order_relaxed);
}

// A slow reader misses lines, because no thread waits for it.
void say(Level level, const std::string& who, const std::string& text) {
  if (!says(level)) return;
  const int pipe = pipe_of_records;
  const auto number = static_cast<int>(level);
  if (pipe == no_pipe)
    return write_to_stderr("ringreduce[" + who + "] " + names[number / 10 - 1] + ": " + text + "\n");
  std::string line = std::to_string(number) + who + "\n" + text;
  line.resize(length_within(line, longest_record) + 1);
  [[maybe_unused]] const auto written = write(pipe, line.data(), line.size());
}

void write_to_stderr(const std::string& text) {
  if (has_stderr) [[maybe_unused]]
    const auto written = write(STDERR_FILENO, text.data(), text.size());
}

void forget_stderr() {
  has_stderr = false;
}

std::optional<Level> by_environment() {
  const std::string set = environment("RINGREDUCE_LOG", {"info", "debug"});
  if (set.empty()) return std::nullopt;
  return set == "info" ? Level::info : Level::debug;
}

void follow_environment() {
  if (const auto level = by_environment()) send_to_stderr(*level);
}

void send_to_stderr(Level from) {
  send(from, no_pipe);
}

void send_to_pipe(Level from, int descriptor) {
  send(from, descriptor);
}

}  // namespace ringreduce::log
