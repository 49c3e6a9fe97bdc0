// The agreement on survivors, with peers that put anything on their boards. Whatever they say, this rank is
// one of the survivors that it names, in order, and every exchange brings a blob for each.
#include "engine/endings/agreement.h"

#include <algorithm>
#include <cstdlib>

#include "wire.h"

namespace ringreduce::fuzz {
namespace {

void require(bool good) {
  if (!good) std::abort();
}

void agree(Input& input) {
  constexpr int rank = 1, world = 3;
  Wire wire(rank, world, input);
  // Twice: what was shown in an earlier attempt still holds.
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      const auto tick = [&] {
        if (input.empty()) throw Ended();
      };
      Agreement agreement(wire, Clock::now() + std::chrono::hours(1), tick, "shrink()");
      const std::vector<int> members = agreement.survivors();
      require(std::is_sorted(members.begin(), members.end()));
      require(std::count(members.begin(), members.end(), rank) == 1);
      for (int i = 0; i < 2; ++i) {
        const auto blobs = agreement.exchange(members, input.text(8));
        require(blobs.size() == members.size());
        for (const std::string& blob : blobs) require(blob.size() <= longest_blob);
      }
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace ringreduce::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ringreduce::fuzz::Input input(data, size);
  try {
    ringreduce::fuzz::agree(input);
  } catch (const ringreduce::fuzz::Ended&) {
  }
  return 0;
}
