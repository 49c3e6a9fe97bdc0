#include "reduce/copy_to_reader.h"

#include <chrono>

#include "reduce/reduce.h"
#include "reduce/stream.h"

namespace ringreduce {
namespace {

constexpr std::size_t line = 64;
// Shorter copies are timed now and then: reading the clock takes several per cent of their time.
constexpr std::size_t always_timed = 64 << 10;
constexpr int copies_per_time = 8;
// If copies through the cache are slow, the way that is not taken is tried now and then, by enough bytes that
// a core cannot keep the stores for later, and that the wait for the last of them hardly counts.
constexpr std::size_t bytes_per_trial = 2 << 20, trial_bytes = 16 << 10;

}  // namespace

bool CopyToReader::slow() const {
  return times_[through].median() > limits_.slow_from;
}

CopyToReader::Way CopyToReader::way(std::size_t bytes) const {
  const float gain = bytes < trial_bytes ? limits_.least_gain_of_short : limits_.least_gain;
  return slow() && times_[past].median() * gain < times_[through].median() ? past : through;
}

bool CopyToReader::wants(std::size_t bytes) {
  if (copies_without_fetching() && bytes >= least_without_fetching) return true;
  return bytes >= past_from && (way(bytes) == past || --until_timed_ < 0);
}

void CopyToReader::timed(Way way, void* to, const void* from, std::size_t bytes) {
  const auto before = std::chrono::steady_clock::now();
  way == past ? stream(to, from, bytes) : copy_own(to, from, bytes);
  const std::chrono::duration<float, std::nano> took = std::chrono::steady_clock::now() - before;
  times_[way].add(took.count() * line / static_cast<float>(bytes));
}

void CopyToReader::operator()(void* to, const void* from, std::size_t bytes) {
  if (bytes < past_from) return copy_own(to, from, bytes);
  const Way chosen = way(bytes);
  since_trial_ += bytes;
  if (since_trial_ >= bytes_per_trial && slow()) {
    since_trial_ = 0;
    const std::size_t tried = std::min(bytes, trial_bytes);
    timed(chosen == past ? through : past, to, from, tried);
    to = static_cast<std::byte*>(to) + tried;
    from = static_cast<const std::byte*>(from) + tried;
    bytes -= tried;
    if (bytes == 0) return;
  }
  if (bytes >= always_timed || --until_timed_ < 0) {
    until_timed_ = copies_per_time;
    timed(chosen, to, from, bytes);
  } else {
    chosen == past ? stream(to, from, bytes) : copy_own(to, from, bytes);
  }
}

}  // namespace ringreduce
