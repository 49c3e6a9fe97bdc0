// Makes a reader's cache the owner of lines that it has read, so that the rank that writes them next need not
// wait until a shared copy is gone (transport/memory/rewriting.h).
//
// A line that its owner has written since it was last read comes with the load, and taking it costs nothing.
// One that was not written must be taken away from its owner, which takes as long as it saves. So taking is
// timed, and left out for a while if it is slow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce {

class LineTaker {
 public:
  static constexpr std::size_t block_bytes = 16 << 10;  // that are read, and then taken

  // A message is read. Returns whether its lines should be taken. `near`: from a core that shares a cache
  // with this one, which loses its lines sooner.
  bool begin(bool near) {
    if (lines_ > 0) judge();
    near_ = near;
    return left_out_ == 0 || --left_out_ == 0;
  }
  // Takes lines that this core has just read. Their values do not change: each line's first byte is written
  // with itself by one instruction.
  void take(const void* from, std::size_t bytes);
  // Of this process, for tests.
  static std::uint64_t lines_taken();

 private:
  // Looks at the message before. One that was slow may have been interrupted: the more there are in a row,
  // the more are left out.
  void judge();

  bool near_ = false;
  std::size_t lines_ = 0;                 // taken of the latest message
  double took_ = 0;                       // nanoseconds, for these
  int slow_in_a_row_ = 0, left_out_ = 0;  // messages
};

}  // namespace ringreduce
