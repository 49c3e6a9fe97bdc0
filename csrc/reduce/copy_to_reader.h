// Copies into memory that another core has read and will read again, through the cache or past it, whichever
// is faster.
//
// A store through the cache to such a line waits until the other core has given the line up. Within a chiplet
// this takes 2 to 7 ns for each line, because stores overlap. Between chiplets it takes 10 ns (Zen 3) or some
// 30 ns (Zen 4), where a store past the cache takes 3 to 5 ns, and the reader fetches the line from memory in
// 4 ns. Which case applies depends on the processor, on the traffic (a line that the reader claims and writes
// is given up at once), and on a hypervisor that moves its cores while a program runs. So the copies
// themselves are timed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace ringreduce {

// For one reader, or one group of readers. Not for several threads at a time.
class CopyToReader {
 public:
  static constexpr std::size_t past_from = 2 << 10;  // shorter copies go through the cache

  struct Limits {
    float slow_from = 8;  // ns per line, above what near cores and memory take
    // Of the sender's time: the reader's way to memory is longer. Times of short copies vary more.
    float least_gain = 1.5F, least_gain_of_short = 2;
  };
  CopyToReader() = default;
  explicit CopyToReader(Limits limits) : limits_(limits) {}

  // What it has written is visible before later stores.
  void operator()(void* to, const void* from, std::size_t bytes);
  // Whether it should copy so many bytes although another function would write them to another place, too:
  // it copies them faster, or has to be timed.
  bool wants(std::size_t bytes);
  bool goes_past(std::size_t bytes) const { return way(bytes) == past; }

 private:
  enum Way { through, past };
  // In ns per line, of the latest copies.
  class Times {
   public:
    void add(float ns) {
      latest_[next_] = ns;
      next_ = (next_ + 1) % latest_.size();
    }
    float median() const {
      const auto [a, b, c] = latest_;
      return std::max(std::min(a, b), std::min(std::max(a, b), c));
    }

   private:
    std::array<float, 3> latest_{};
    std::size_t next_ = 0;
  };

  bool slow() const;
  Way way(std::size_t bytes) const;
  void timed(Way way, void* to, const void* from, std::size_t bytes);

  Limits limits_;
  Times times_[2];
  int until_timed_ = 0;          // copies
  std::size_t since_trial_ = 0;  // bytes
};

}  // namespace ringreduce
