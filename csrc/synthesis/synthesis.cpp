#include "synthesis/synthesis.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "schedule/catalogue.h"
#include "schedule/check.h"
#include "simulate/simulator.h"

namespace ringreduce {
namespace {

constexpr std::size_t KiB = 1024;
// Alternatives to the usual one: few rounds, few bytes, little between hosts.
constexpr std::string_view others[] = {"recursive_doubling", "circulant", "ring", "two_level"};
constexpr std::size_t slices[] = {64 * KiB, 128 * KiB, 256 * KiB, 512 * KiB};
constexpr int lanes = 4;
// Predictions err, so only a clearly better way replaces the usual one.
constexpr double worth_it = 0.95;
// Above this size, time grows in proportion.
constexpr double largest = 16 << 20;

// The time of a core per message: roughly that of TCP between hosts, and of shared memory inside them.
constexpr MessageCost between{0, 8e-6, 8e-6, 0.1e-9, 0.1e-9, 0.2e-9, 0};
constexpr MessageCost inside{0, 1e-6, 1e-6, 0, 0.1e-9, 0.1e-9, 0};

}  // namespace

Synthesis::Synthesis(Network network, std::vector<int> groups, std::vector<int> order)
    : network_(std::move(network)), groups_(std::move(groups)), order_(std::move(order)) {
  const auto start = std::chrono::steady_clock::now();
  packing_ = pack(network_);
  for (const Forest& forest : packing_.forests) trees_.push_back(trees_of_ranks(forest.trees, network_));
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t Synthesis::digest() const {
  std::uint64_t digest = 0xcbf29ce484222325ull;
  for (const auto& trees : trees_) {
    for (const Tree& tree : trees) {
      for (const int parent : tree) digest = (digest ^ static_cast<std::uint64_t>(parent)) * 0x100000001b3ull;
    }
  }
  return digest;
}

Place Synthesis::place(int rank, int forest) const {
  return {network_.world(), rank, 0, groups_, order_, forest < 0 ? std::vector<Tree>() : trees_[forest]};
}

double Synthesis::predict(std::size_t bytes, const Way& way) const {
  Question question;
  question.bytes = std::min(static_cast<double>(bytes), largest);
  question.slice_bytes = static_cast<double>(way.slice_bytes);
  question.lanes = way.lanes;
  question.between = {between};
  question.inside = {inside};
  Place place = this->place(0, way.forest);
  const auto schedule_of = [&](int rank) {
    place.rank = rank;
    return make_schedule(Collective::all_reduce, way.algorithm, place);
  };
  return simulate(network_, schedule_of, question).end.at * static_cast<double>(bytes) / question.bytes;
}

Way Synthesis::fastest(std::size_t bytes, Way usual) const {
  if (packing_.forests.empty()) return usual;
  bytes = std::max<std::size_t>(bytes, 1);
  usual.seconds = predict(bytes, usual);
  Way best = usual;
  const auto consider = [&](Way way) {
    way.seconds = predict(bytes, way);
    if (way.seconds < best.seconds) best = way;
  };
  for (const std::string_view name : others) {
    if (name != usual.algorithm) consider({name, usual.slice_bytes, usual.lanes});
  }
  for (int forest = 0; forest < static_cast<int>(trees_.size()); ++forest) {
    if (static_cast<double>(bytes) / packing_.forests[forest].rate >= best.seconds) continue;
    for (const std::size_t slice : slices) consider({"synthesised", slice, lanes, forest});
  }
  if (best.seconds >= worth_it * usual.seconds) return usual;
  if (best.forest >= 0) prove(best.forest);
  return best;
}

void Synthesis::prove(int forest) const {
  Place place = this->place(0, forest);
  std::vector<Schedule> all;
  for (; place.rank < place.world; ++place.rank)
    all.push_back(make_schedule(Collective::all_reduce, "synthesised", place));
  if (const std::string wrong = check(all); !wrong.empty())
    throw std::logic_error("the checker rejects the synthesised schedule: " + wrong);
}

}  // namespace ringreduce
