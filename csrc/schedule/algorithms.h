// All algorithms that are not the mirror image of another (see catalogue.cpp), by the file that explains
// them.
#pragma once

#include "schedule/schedule.h"

namespace ringreduce {

// ring.cpp
Schedule ring_reduce_scatter(const Place& place);
Schedule bidirectional_ring_all_reduce(const Place& place);

// recursive_doubling.cpp
Schedule recursive_doubling_all_reduce(const Place& place);

// halving.cpp
Schedule halving_reduce_scatter(const Place& place);

// circulant.cpp
Schedule circulant_reduce_scatter(const Place& place);

// swing.cpp
Schedule swing_all_reduce(const Place& place);

// tree.cpp
Schedule tree_reduce(const Place& place);
Schedule tree_gather(const Place& place);

// double_tree.cpp
Schedule double_tree_all_reduce(const Place& place);

// spanning_trees.cpp
Schedule spanning_trees_all_reduce(const Place& place);

// chain.cpp
Schedule chain_broadcast(const Place& place);
Schedule chain_scan(const Place& place);

// doubling.cpp
Schedule doubling_scan(const Place& place);
Schedule doubling_exscan(const Place& place);

// direct.cpp
Schedule one_shot_all_reduce(const Place& place);
Schedule direct_reduce_scatter(const Place& place);
Schedule direct_broadcast(const Place& place);
Schedule direct_scatter(const Place& place);
Schedule direct_scan(const Place& place);

// all_to_all.cpp
Schedule pairwise_all_to_all(const Place& place);
Schedule bruck_all_to_all(const Place& place);
Schedule direct_all_to_all(const Place& place);

// two_level.cpp
Schedule two_level_all_reduce(const Place& place);
Schedule two_level_reduce_scatter(const Place& place);

// leaders.cpp
Schedule leaders_all_reduce(const Place& place);

// dissemination.cpp
Schedule dissemination_barrier(const Place& place);
Schedule direct_barrier(const Place& place);

}  // namespace ringreduce
