// Blocks that threads allocate, fill, communicate and free, and that a forked child inherits.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "stress.h"
#include "transport/memory/block_pool.h"
#include "transport/remote/pool.h"

// ThreadSanitizer takes a new mapping for a write. The system puts pages with the same bytes in place at
// once, so that threads may read meanwhile.
extern "C" const char* __tsan_default_suppressions();  // NOLINT: its name is the sanitizer's
extern "C" const char* __tsan_default_suppressions() {
  return "race:read_while_it_moves\n";
}

namespace stress {
namespace {

using block_pool::Kind;

struct Held {
  std::uint64_t* data;
  std::size_t count;
  std::uint64_t number;
};

void fill(const Held& block) {
  for (std::size_t i = 0; i < block.count; i += 64) block.data[i] = block.number + i;
}

void check(const Held& block) {
  for (std::size_t i = 0; i < block.count; i += 64) {
    require(block.data[i] == block.number + i, "a block's contents");
  }
}

[[gnu::noinline]] void read_while_it_moves(const Held& block) {
  for (int turn = 0; turn < 200; ++turn) {
    for (std::size_t i = 0; i < block.count; i += 64) {
      require(block.data[i] == block.number + i, "the contents of a block that moves");
    }
  }
}

Held allocate(std::mt19937& chance, std::uint64_t number) {
  const std::size_t sizes[] = {std::size_t{64} << 10, std::size_t{300} << 10, std::size_t{3} << 20};
  const std::size_t bytes = sizes[chance() % 3] + 8 * (chance() % 1000);
  const Kind kind = static_cast<Kind>(chance() % 3);
  const Held block{static_cast<std::uint64_t*>(block_pool::allocate(bytes, kind)), bytes / 8, number};
  require(block.data, "a block of some kind");
  if (kind == Kind::zeroed) {
    for (std::size_t i = 0; i < block.count; i += 64) require(block.data[i] == 0, "a zeroed block");
  }
  require(block_pool::size_of(block.data) == bytes, "a block's size");
  return block;
}

void release(const Held& block) {
  check(block);
  require(block_pool::free(block.data), "a block can be freed");
}

// What each thread does. Another reads its first block all the time.
void churn(unsigned seed, std::atomic<bool>& reads, const std::function<void(const Held&)>& show) {
  std::mt19937 chance(seed);
  std::vector<Held> held{allocate(chance, std::uint64_t{seed} << 32)};
  fill(held[0]);
  show(held[0]);
  for (int step = 1; step < 300; ++step) {
    const Held& some = held[chance() % held.size()];
    if (chance() % 2 == 0) block_pool::reach(some.data, some.count * 8);
    check(some);
    if (held.size() > 1 && (held.size() > 12 || chance() % 3 == 0)) {
      const std::size_t which = 1 + chance() % (held.size() - 1);
      release(held[which]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      held.push_back(
          allocate(chance, (std::uint64_t{seed} << 32) + static_cast<std::uint64_t>(step) * 1000000));
      fill(held.back());
    }
  }
  while (reads) std::this_thread::yield();
  for (const Held& block : held) release(block);
}

bool child_has(const std::vector<Held>& blocks) {
  const pid_t child = fork();
  if (child == 0) {
    for (const Held& block : blocks) check(block);
    for (Held block : blocks) {
      block.number = 7;
      fill(block);
      release(block);
    }
    _exit(0);
  }
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

void blocks() {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 3; ++seed) {
    threads.emplace_back([seed] {
      std::atomic<bool> reads{true};
      std::thread reader;
      churn(seed, reads, [&](const Held& first) {
        reader = std::thread([&reads, first] {
          read_while_it_moves(first);
          reads = false;
        });
      });
      reader.join();
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::mt19937 chance(7);
  std::vector<Held> kept;
  for (std::uint64_t number = 0; number < 30; ++number) {
    kept.push_back(allocate(chance, number * 1000000));
    fill(kept.back());
    for (std::uint64_t use = 0; use < number % 4; ++use)
      block_pool::reach(kept.back().data, kept.back().count * 8);
    if (number % 5 == 4) {
      release(kept[kept.size() - 2]);
      kept.erase(kept.end() - 2);
    }
  }
  for (int turn = 0; turn < 3; ++turn) require(child_has(kept), "a child has its parent's blocks");
  for (const Held& block : kept) release(block);
}

void buffers() {
  constexpr std::size_t small = std::size_t{64} << 10, large = std::size_t{1} << 20,
                        spare = std::size_t{16} << 20;
  Pool pool;
  std::vector<Buffer*> taken;
  for (std::size_t bytes = 0; bytes < 2 * spare; bytes += small) taken.push_back(pool.take(small));
  for (Buffer* buffer : taken) pool.release(buffer);
  require(pool.bytes() > spare - 2 * small && pool.bytes() <= spare, "what is kept of the buffers");
  for (int turn = 0; turn < 3; ++turn) {
    pool.release(pool.take(large));
    const std::size_t held = pool.bytes();
    Buffer* const again = pool.take(large);
    require(pool.bytes() == held, "a buffer that was just used is used again");
    pool.release(again);
  }
  pool.release(pool.take(2 * spare));
  require(pool.bytes() <= spare, "a buffer that is larger than what is kept goes");
}

}  // namespace stress
