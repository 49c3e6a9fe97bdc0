// The plans of earlier calls, which later calls like them find again, in bounded memory.
#pragma once

#include <atomic>
#include <bit>
#include <memory>
#include <vector>

#include "engine/planning/call.h"
#include "engine/planning/plan.h"

namespace ringreduce {

struct Target;

// What a plan depends on, packed, because each call hashes and compares it.
struct PlanKey {
  struct Kind {
    Collective collective;
    DType dtype;
    std::uint8_t op;  // and in the upper bit, whether its values have a factor
    Encoding wire;
    int lanes;
  };
  struct Way {
    int root, algorithm;
  };
  PlanKey(const Call& call, const Target& of)
      : target(reinterpret_cast<std::uintptr_t>(&of)),
        kind(__builtin_bit_cast(std::uint64_t,
                                Kind{call.collective, call.dtype, op_of(call), call.wire, call.lanes})),
        way(__builtin_bit_cast(std::uint64_t, Way{call.root, call.algorithm})),
        count(call.input_extents ? ~std::size_t{0} : call.count),  // a blind call's plan takes any
        slice_bytes(call.slice_bytes),
        split(call.user_op ? call.user_op->kind : call.split) {}
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
  // Its upper bits also differ between keys that differ in few, such as multiples of 64.
  std::uint64_t hash() const {
    return target * 0x9e3779b97f4a7c15 + kind * 0xbf58476d1ce4e5b9 + way * 0x94d049bb133111eb +
           count * 0xff51afd7ed558ccd + slice_bytes * 0xc4ceb9fe1a85ec53 + split * 0xd6e8feb86659fd93;
  }

  static std::uint8_t op_of(const Call& call) {
    return static_cast<std::uint8_t>(static_cast<unsigned>(call.op) | (call.factor ? 0x80 : 0));
  }

  std::uint64_t target, kind, way, count, slice_bytes, split;
};

class Plans {
 public:
  // Null if there is none.
  Plan* find(const PlanKey& key) {
    if (latest_ && latest_->key == key) return &latest_->plan;
    Kept* kept = places_[place(key)].get();
    while (kept && kept->key != key) kept = kept->next.get();
    if (!kept) return nullptr;
    latest_ = kept;
    return &kept->plan;
  }
  // Drops all others if they take too much memory.
  Plan& add(const PlanKey& key, Plan plan) {
    const std::size_t more = sizeof(Kept) + plan.full.bytes() + plan.last_slice.bytes();
    if (bytes() + more > most_bytes) clear();
    bytes_.store(bytes() + more, std::memory_order_relaxed);
    auto& first = places_[place(key)];
    first = std::make_unique<Kept>(Kept{key, std::move(first), std::move(plan)});
    return first->plan;
  }
  void clear() {
    latest_ = nullptr;
    for (auto& first : places_) first.reset();
    bytes_.store(0, std::memory_order_relaxed);
  }
  // Callable from any thread.
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // Large models have hundreds of sizes. A plan of a ring of 64 ranks takes 27 KB, so 300 of them are kept,
  // and of two ranks' plans 14,000. Those share places, but it takes longer to make one than to look for it.
  static constexpr int place_bits = 11;
  static constexpr std::size_t most_bytes = std::size_t{8} << 20;
  struct alignas(64) Kept {
    PlanKey key;
    std::unique_ptr<Kept> next;
    Plan plan;
  };
  static std::size_t place(const PlanKey& key) { return key.hash() >> (64 - place_bits); }

  std::vector<std::unique_ptr<Kept>> places_ = std::vector<std::unique_ptr<Kept>>(1 << place_bits);
  Kept* latest_ = nullptr;  // that was found
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace ringreduce
