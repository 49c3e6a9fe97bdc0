#include "schedule/catalogue.h"

#include <algorithm>
#include <stdexcept>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"

namespace ringreduce {
namespace {

using enum Collective;
using enum Order;

constexpr std::string_view patarasuk = "Patarasuk, Yuan: Bandwidth optimal all-reduce (JPDC 2009)";
constexpr std::string_view thakur =
    "Thakur, Rabenseifner, Gropp: Collective communication in MPICH (IJHPCA 2005)";
constexpr std::string_view rabenseifner = "Rabenseifner: Collective reduction operations (ICCS 2004)";
constexpr std::string_view traeff = "Träff: Optimal, non-pipelined reduce-scatter (arXiv:2410.14234)";
constexpr std::string_view bruck = "Bruck et al.: Efficient algorithms for all-to-all (IEEE TPDS 1997)";
constexpr std::string_view sanders = "Sanders, Speck, Träff: Two-tree algorithms (Parallel Computing 2009)";
constexpr std::string_view swing = "De Sensi et al.: Swing (NSDI 2024)";
constexpr std::string_view two_level = "Thakur, Gropp: Collective operations in MPICH (EuroPVM/MPI 2003)";
constexpr std::string_view karonis =
    "Karonis et al.: Exploiting hierarchy in parallel computer networks (IPDPS 2000)";
constexpr std::string_view pjesivac =
    "Pjesivac-Grbovic et al.: MPI collective operations (Cluster Computing 2007)";
constexpr std::string_view zhao = "Zhao et al.: ForestColl (arXiv:2402.06787)";
constexpr std::string_view hensgen = "Hensgen, Finkel, Manber: Barrier synchronization (IJPP 1988)";
constexpr std::string_view hillis = "Hillis, Steele: Data parallel algorithms (CACM 1986)";
constexpr std::string_view prefix = "Träff: Exclusive prefix sums (arXiv:2507.04785)";
constexpr std::string_view plain = "MPI standard, the definition itself";

constexpr std::string_view half_bytes = "(n-1)/n S";
constexpr std::string_view both_bytes = "2(n-1)/n S";
constexpr std::string_view log_rounds = "⌈log2 n⌉";
constexpr std::string_view log_both = "2⌈log2 n⌉";
constexpr std::string_view log_of_groups = "⌈log2 m⌉ + ⌈log2(n/m)⌉ for groups of m";
constexpr std::string_view groups_bytes = "(n-1)/n S for groups of one size";
constexpr std::string_view fold_rounds = "⌊log2 n⌋ (+2 if n is not a power of two)";
constexpr std::string_view fold_bytes = "⌊log2 n⌋ S (+S if n is not a power of two)";

constexpr Entry entries[] = {
    {all_reduce, "ring", all_reduce_of<ring_reduce_scatter>, "2(n-1)", both_bytes, patarasuk, ""},
    {all_reduce, "bidirectional_ring", bidirectional_ring_all_reduce, "2(n-1)", both_bytes, patarasuk, ""},
    {all_reduce, "recursive_doubling", recursive_doubling_all_reduce, fold_rounds, fold_bytes, thakur, ""},
    {all_reduce, "halving_doubling", all_reduce_of<halving_reduce_scatter>, log_both,
     "2(n-1)/n S (about 5/2 S at most if n is not a power of two)", rabenseifner, ""},
    {all_reduce, "tree", all_reduce_of<tree_reduce>, log_both, "⌈log2 n⌉ S", thakur, "", kept},
    {all_reduce, "double_tree", double_tree_all_reduce, "2⌊log2 n⌋", "2 S (n < 4: n/2 S)", sanders, ""},
    {all_reduce, "one_shot", one_shot_all_reduce, "1", "(n-1) S", plain, "", at_once},
    {all_reduce, "two_shot", all_reduce_of<direct_reduce_scatter>, "2", both_bytes, plain, "", at_once},
    {all_reduce, "swing", swing_all_reduce, "2⌊log2 n⌋ (+2 if n is not a power of two)",
     "2(p-1)/p S, p = 2^⌊log2 n⌋ (+S if n is not a power of two)", swing, ""},
    {all_reduce, "circulant", all_reduce_of<circulant_reduce_scatter>, log_both, both_bytes, traeff, ""},
    {all_reduce, "two_level", two_level_all_reduce, "2⌈log2 m⌉ + 2⌈log2(n/m)⌉ for groups of m",
     "2(n-1)/n S for groups of one size", two_level, ""},
    {all_reduce, "leaders", leaders_all_reduce, "3", "(n+g-2)/g S for g groups (at least S)", karonis, ""},
    {all_reduce, "synthesised", spanning_trees_all_reduce, "2(n-1) if the network is unknown",
     "2 S if the network is unknown (n = 2: S)", zhao, ""},

    {reduce_scatter, "ring", ring_reduce_scatter, "n-1", half_bytes, patarasuk, ""},
    {reduce_scatter, "recursive_halving", halving_reduce_scatter, log_rounds, half_bytes, rabenseifner, ""},
    {reduce_scatter, "bruck", circulant_reduce_scatter, log_rounds, half_bytes, traeff, ""},
    {reduce_scatter, "two_level", two_level_reduce_scatter, log_of_groups, groups_bytes, two_level, ""},
    {reduce_scatter, "direct", direct_reduce_scatter, "1", half_bytes, plain, "", at_once},

    {all_gather, "ring", mirrored<ring_reduce_scatter>, "n-1", half_bytes, patarasuk, ""},
    {all_gather, "recursive_doubling", mirrored<halving_reduce_scatter>, log_rounds,
     "(n-1)/n S (about 3/2 S at most if n is not a power of two)", rabenseifner, ""},
    {all_gather, "bruck", mirrored<circulant_reduce_scatter>, log_rounds, half_bytes, bruck, ""},
    {all_gather, "two_level", mirrored<two_level_reduce_scatter>, log_of_groups, groups_bytes, two_level, ""},
    {all_gather, "direct", mirrored<direct_reduce_scatter>, "1", half_bytes, plain, ""},

    {broadcast, "tree", mirrored<tree_reduce>, log_rounds, "⌈log2 n⌉ S", thakur, ""},
    {broadcast, "chain", chain_broadcast, "n-1", "S", pjesivac, ""},
    {broadcast, "direct", direct_broadcast, "1", "(n-1) S", plain, ""},

    {reduce, "tree", tree_reduce, log_rounds, "S", thakur, ""},
    {reduce, "chain", mirrored<chain_broadcast>, "n-1", "S", pjesivac, ""},
    {reduce, "direct", mirrored<direct_broadcast>, "1", "S", plain, "", at_once},

    {gather, "tree", tree_gather, log_rounds, "max(n-h, ⌊h/2⌋)/n S, h = 2^(⌈log2 n⌉-1)", thakur, ""},
    {gather, "direct", mirrored<direct_scatter>, "1", "S/n", plain, ""},

    {scatter, "tree", mirrored<tree_gather>, log_rounds, half_bytes, thakur, ""},
    {scatter, "direct", direct_scatter, "1", half_bytes, plain, ""},

    {all_to_all, "pairwise", pairwise_all_to_all, "n (n-1 if n ≤ 2)", half_bytes, thakur, ""},
    {all_to_all, "bruck", bruck_all_to_all, "⌈log2 n⌉ + 1",
     "(one bits of all numbers below n)/n S (about ½ log2 n S)", bruck, ""},
    {all_to_all, "direct", direct_all_to_all, "1", half_bytes, plain, ""},

    {scan, "chain", chain_scan, "n-1", "S", pjesivac, "", kept},
    {scan, "doubling", doubling_scan, log_rounds, "⌈log2 n⌉ S", hillis, "", kept},
    {scan, "direct", direct_scan, "1", "(n-1) S", plain, "", at_once},

    {exscan, "chain", exclusive<chain_scan>, "n-1", "2 S (n = 2: S)", pjesivac, "", kept},
    {exscan, "doubling", doubling_exscan, "⌈log2 4(n-1)/3⌉ (n = 2: 1)",
     "(⌈log2 4(n-1)/3⌉ + 1) S (n < 4: (n-1) S)", prefix, "", kept},
    {exscan, "direct", exclusive<direct_scan>, "2 (n = 2: 1)", "(n-1) S", plain, "", at_once},

    {barrier, "dissemination", dissemination_barrier, log_rounds, "0", hensgen, ""},
    {barrier, "direct", direct_barrier, "1", "0", plain, ""},
};

void demand(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

// Whether every rank's chain of parents leads to the one root.
bool spans(const std::vector<int>& parents, int world) {
  if (parents.size() != static_cast<std::size_t>(world)) return false;
  if (std::count(parents.begin(), parents.end(), -1) != 1) return false;
  for (const int parent : parents) {
    int steps = 0;
    for (int rank = parent; rank != -1; rank = parents[rank]) {
      if (rank < 0 || rank >= world || ++steps > world) return false;
    }
  }
  return true;
}

void demand_place(const Place& place) {
  const std::string world = std::to_string(place.world);
  demand(place.world >= 1, "world must be at least 1, not " + world);
  for (const auto& [name, rank] : {std::pair{"rank", place.rank}, std::pair{"root", place.root}}) {
    demand(rank >= 0 && rank < place.world,
           std::string(name) + " must be in [0, " + world + "), not " + std::to_string(rank));
  }
  const std::size_t named = place.groups.size();
  demand(named == 0 || named == static_cast<std::size_t>(place.world),
         "groups must name a group for each of " + world + " ranks, not for " + std::to_string(named));
  std::vector<int> sorted = place.order;
  std::sort(sorted.begin(), sorted.end());
  bool whole = sorted.empty() || sorted.size() == static_cast<std::size_t>(place.world);
  for (std::size_t i = 0; whole && i < sorted.size(); ++i) whole = sorted[i] == static_cast<int>(i);
  demand(whole, "order must name each of " + world + " ranks once");
  for (std::size_t tree = 0; tree < place.trees.size(); ++tree) {
    demand(spans(place.trees[tree], place.world),
           "tree " + std::to_string(tree) + " does not span " + world + " ranks");
  }
}

}  // namespace

std::span<const Entry> catalogue() {
  return entries;
}

std::string names_of_algorithms(Collective collective, Order least) {
  std::string names;
  for (const Entry& entry : entries) {
    if (entry.collective != collective || entry.order < least) continue;
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names;
}

const Entry* find_algorithm(Collective collective, std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.collective == collective && entry.name == name) return &entry;
  }
  return nullptr;
}

Schedule make_schedule(Collective collective, std::string_view name, const Place& place) {
  const Entry* entry = find_algorithm(collective, name);
  demand(entry != nullptr, std::string("no ") + name_of(collective) + " algorithm is called '" +
                               std::string(name) + "'; choose from " + names_of_algorithms(collective));
  demand_place(place);
  return entry->build(place);
}

}  // namespace ringreduce
