// The measured tables behind algorithm="auto": in shared memory, over a network, and the differences for far
// links, for MPI, for hosts with several ranks, which use both, and for GPU kernels.
#include "engine/planning/tuning.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr std::size_t all = ~std::size_t{0};
constexpr double far = 8;  // a round trip of 2 ms at 1 Gbit/s
constexpr double as_fast_as_inside = 100e9;
using C = Collective;

// Measured by `ringreduce tune`.
constexpr TuningRow in_memory[] = {
    {C::all_reduce, 2, 0, 48 * KiB, "one_shot", 256 * KiB, 1},
    {C::all_reduce, 2, 0, 512 * KiB, "two_shot", 256 * KiB, 2},
    {C::all_reduce, 2, 0, all, "two_shot", 256 * KiB, 1},
    {C::all_reduce, 4, 1, 24 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 4, 1, 1 * MiB, "two_shot", 512 * KiB, 2},
    {C::all_reduce, 4, 1, all, "two_shot", 256 * KiB, 2},
    {C::all_reduce, 8, 1, 16 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 8, 1, all, "leaders", 512 * KiB, 1},
    // If rank order must be kept.
    {C::all_reduce, 8, 1, 32 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 8, 1, 512 * KiB, "two_shot", 256 * KiB, 2},
    {C::all_reduce, 8, 1, all, "two_shot", 512 * KiB, 1},
    {C::reduce_scatter, 2, 0, all, "direct", 256 * KiB, 1},
    {C::all_gather, 2, 0, all, "direct", 256 * KiB, 1},
    {C::broadcast, 2, 0, 1 * MiB, "direct", 32 * KiB, 1},
    {C::reduce, 2, 0, 1 * MiB, "direct", 32 * KiB, 1},
    {C::reduce, 4, 1, 512 * KiB, "direct", 64 * KiB, 2},
    {C::reduce, 8, 1, 1 * MiB, "direct", 64 * KiB, 2},
    {C::gather, 2, 0, 1 * MiB, "direct", 32 * KiB, 1},
    {C::scatter, 2, 0, 1 * MiB, "direct", 32 * KiB, 1},
    {C::scatter, 4, 1, 256 * KiB, "direct", 128 * KiB, 4},
    {C::all_to_all, 2, 0, 16 * MiB, "direct", 512 * KiB, 1},
    {C::all_to_all, 4, 1, all, "direct", 512 * KiB, 1},
    {C::reduce_scatter, 4, 1, all, "direct", 512 * KiB, 1},
    {C::all_gather, 4, 1, all, "direct", 512 * KiB, 1},
    {C::scan, 8, 1, 16 * KiB, "direct", 64 * KiB, 1},
    {C::scan, 8, 1, 256 * KiB, "chain", 128 * KiB, 2},
    {C::exscan, 8, 1, 16 * KiB, "direct", 64 * KiB, 1},
    {C::exscan, 8, 1, 256 * KiB, "chain", 128 * KiB, 2},
    {C::reduce_scatter, 8, 1, 1 * MiB, "direct", 512 * KiB, 4},
    {C::reduce_scatter, 8, 1, 4 * MiB, "direct", 512 * KiB, 2},
    {C::reduce_scatter, 8, 1, all, "direct", 1 * MiB, 2},
    {C::all_gather, 8, 1, 512 * KiB, "direct", 64 * KiB, 2},
    {C::all_gather, 8, 1, all, "direct", 512 * KiB, 1},
    // Measured on two cores with the benchmark, because tuning so many ranks takes hours.
    {C::all_reduce, 32, 1, 4 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 32, 1, all, "leaders", 512 * KiB, 1},
    {C::all_reduce, 24, 1, 8 * KiB, "one_shot", 64 * KiB, 1},  // if rank order must be kept
    {C::all_reduce, 32, 1, all, "two_shot", 256 * KiB, 2},
    {C::all_reduce, 64, 1, 256, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 64, 1, 512 * KiB, "leaders", 512 * KiB, 1},
    {C::all_reduce, any_world, 1, 4 * KiB, "recursive_doubling", 64 * KiB, 1},
    {C::all_reduce, any_world, 1, 2 * MiB, "circulant", 256 * KiB, 2},
    {C::all_reduce, any_world, 1, all, "ring", 256 * KiB, 2},
    {C::barrier, any_world, 1, all, "direct", 64 * KiB, 1},
};

// The same collectives, not measured.
constexpr TuningRow in_any_memory[] = {
    {C::all_gather, any_world, 1, all, "direct", 512 * KiB, 1},
    {C::all_reduce, 8, -1, 16 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, any_world, -1, 16 * KiB, "recursive_doubling", 64 * KiB, 1},
    // If rank order must be kept: one_shot beats two_shot up to here with 12 and 16 ranks on two cores.
    {C::all_reduce, any_world, -1, 16 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, any_world, -1, all, "two_shot", 256 * KiB, 2},
    {C::reduce_scatter, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::all_gather, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::broadcast, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::reduce, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::gather, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::scatter, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::all_to_all, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::scan, 8, -1, 16 * KiB, "direct", 64 * KiB, 1},
    {C::scan, any_world, -1, 16 * KiB, "doubling", 64 * KiB, 1},
    {C::scan, any_world, -1, all, "chain", 256 * KiB, 2},
    {C::scan, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::exscan, 8, -1, 16 * KiB, "direct", 64 * KiB, 1},
    {C::exscan, any_world, -1, 16 * KiB, "doubling", 64 * KiB, 1},
    {C::exscan, any_world, -1, all, "chain", 256 * KiB, 2},
    {C::exscan, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::barrier, any_world, -1, all, "dissemination", 64 * KiB, 1},
};

// On far links messages cost next to nothing and rounds nearly everything. One round is best as long as
// sending all its bytes takes less time than another round would.
constexpr TuningRow over_far_links[] = {
    {C::all_reduce, 2, -1, 256 * KiB, "one_shot", 64 * KiB, 4, far},
    {C::all_reduce, 4, -1, 8 * KiB, "one_shot", 64 * KiB, 1, far},
    {C::all_reduce, 8, -1, 2 * KiB, "one_shot", 64 * KiB, 1, far},
    {C::all_reduce, 16, -1, 1 * KiB, "one_shot", 64 * KiB, 1, far},
    {C::all_reduce, 16, -1, 64 * KiB, "two_shot", 64 * KiB, 4, far},
};

// Few rounds while a message takes longer to travel than to pass, few bytes from then on. The messages of a
// slice are long enough to keep the wire busy while the next slices wait for theirs, and so short that a
// large buffer's message and the sum that it goes into fit the second-level cache.
constexpr TuningRow over_network[] = {
    {C::all_reduce, 2, -1, 256 * KiB, "one_shot", 64 * KiB, 4},
    {C::all_reduce, 2, -1, all, "two_shot", 192 * KiB, 4},
    {C::all_reduce, any_world, -1, 32 * KiB, "recursive_doubling", 64 * KiB, 1},
    {C::all_reduce, any_world, -1, 256 * KiB, "circulant", 128 * KiB, 4},
    {C::all_reduce, any_world, -1, 4 * MiB, "ring", 64 * KiB, 4},
    {C::all_reduce, any_world, -1, all, "ring", 192 * KiB, 4},
    {C::all_reduce, any_world, -1, all, "two_shot", 512 * KiB, 4},
    {C::reduce_scatter, any_world, -1, 256 * KiB, "direct", 256 * KiB, 2},
    {C::reduce_scatter, any_world, -1, all, "ring", 256 * KiB, 4},
    {C::reduce_scatter, any_world, -1, all, "direct", 512 * KiB, 4},
    {C::all_gather, any_world, -1, 256 * KiB, "direct", 256 * KiB, 2},
    {C::all_gather, any_world, -1, all, "ring", 256 * KiB, 4},
    {C::broadcast, any_world, -1, 64 * KiB, "tree", 64 * KiB, 1},
    {C::broadcast, any_world, -1, all, "chain", 128 * KiB, 4},
    {C::reduce, any_world, -1, 64 * KiB, "tree", 64 * KiB, 1},
    {C::reduce, any_world, -1, all, "chain", 128 * KiB, 4},
    {C::reduce, any_world, -1, all, "direct", 256 * KiB, 4},
    {C::gather, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::scatter, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::all_to_all, any_world, -1, all, "direct", 256 * KiB, 2},
    {C::scan, any_world, -1, 64 * KiB, "doubling", 64 * KiB, 1},
    {C::scan, any_world, -1, all, "chain", 128 * KiB, 4},
    {C::scan, any_world, -1, all, "direct", 256 * KiB, 4},
    {C::exscan, any_world, -1, 64 * KiB, "doubling", 64 * KiB, 1},
    {C::exscan, any_world, -1, all, "chain", 128 * KiB, 4},
    {C::exscan, any_world, -1, all, "direct", 256 * KiB, 4},
    {C::barrier, any_world, -1, all, "dissemination", 64 * KiB, 1},
};

// Differences for hosts with several ranks.
constexpr TuningRow across_hosts[] = {
    {C::all_reduce, any_world, -1, 4 * KiB, "recursive_doubling", 64 * KiB, 1},
    // Two levels take few rounds and send no byte twice between hosts, but keep either the links or the
    // inside of hosts idle. A ring uses both at once, which pays if they are equally fast (simulated).
    {C::all_reduce, any_world, -1, 64 * KiB, "two_level", 256 * KiB, 2},
    {C::all_reduce, any_world, -1, all, "ring", 512 * KiB, 4, 1, 0, as_fast_as_inside},
    {C::all_reduce, any_world, -1, 256 * KiB, "two_level", 256 * KiB, 2},
    {C::all_reduce, any_world, -1, all, "two_level", 512 * KiB, 4},
    {C::all_reduce, any_world, -1, all, "two_shot", 512 * KiB, 4},
    {C::reduce_scatter, any_world, -1, 64 * KiB, "two_level", 256 * KiB, 2},
    {C::reduce_scatter, any_world, -1, all, "ring", 512 * KiB, 4, 1, 0, as_fast_as_inside},
    {C::reduce_scatter, any_world, -1, 256 * KiB, "two_level", 256 * KiB, 2},
    {C::reduce_scatter, any_world, -1, all, "two_level", 512 * KiB, 4},
    {C::all_gather, any_world, -1, 64 * KiB, "two_level", 256 * KiB, 2},
    {C::all_gather, any_world, -1, all, "ring", 512 * KiB, 4, 1, 0, as_fast_as_inside},
    {C::all_gather, any_world, -1, 256 * KiB, "two_level", 256 * KiB, 2},
    {C::all_gather, any_world, -1, all, "two_level", 512 * KiB, 4},
};

// Differences where MPI carries messages. At sizes of which MPI still sends half at once, but not all, two
// rounds cost less than one. MPI cuts long messages itself.
constexpr TuningRow over_mpi[] = {
    {C::all_reduce, 2, -1, 16 * KiB, "one_shot", 64 * KiB, 1, 1, 1},
    {C::all_reduce, 2, -1, 16 * KiB, "two_shot", 64 * KiB, 1, 1, 2},
    {C::all_reduce, 2, -1, 32 * KiB, "one_shot", 64 * KiB, 1},
    {C::all_reduce, 2, -1, all, "two_shot", 1 * MiB, 1},
    {C::all_reduce, any_world, -1, 32 * KiB, "recursive_doubling", 64 * KiB, 1},
    {C::all_reduce, any_world, -1, 256 * KiB, "circulant", 128 * KiB, 4},
    {C::all_reduce, any_world, -1, all, "ring", 1 * MiB, 2},
};

// Differences for kernels, not measured on a card. Each rank reaches all others' memory at once, but data
// that one rank has for all, or gets from all, crosses its own links as often.
constexpr TuningRow in_kernels[] = {
    {C::broadcast, any_world, -1, 256 * KiB, "direct", 64 * KiB, 1},
    {C::broadcast, any_world, -1, all, "chain", 64 * KiB, 1},
    {C::reduce, any_world, -1, 256 * KiB, "direct", 64 * KiB, 1},
    {C::reduce, any_world, -1, all, "chain", 64 * KiB, 1},
};

}  // namespace

Tuning tuning_of(std::string_view transport) {
  if (transport == "shm" || transport == "local") return Tuning::memory;
  if (transport == "tcp") return Tuning::network;
  if (transport == "ofi") return Tuning::fabric;
  if (transport == "mpi") return Tuning::mpi;
  if (transport == "shm+ofi") return Tuning::hosts_of_several_on_a_fabric;
  if (transport.find('+') != std::string_view::npos) return Tuning::hosts_of_several;
  throw Error("there are no tuning tables for transport '" + std::string(transport) + "'");
}

TuningTables tuning_tables(Tuning tuning) {
  switch (tuning) {
    case Tuning::memory:
      return {in_memory, in_any_memory};
    case Tuning::hosts_of_several:
    case Tuning::hosts_of_several_on_a_fabric:
      return {across_hosts, over_far_links, over_network};
    case Tuning::mpi:
      return {over_far_links, over_mpi, over_network};
    case Tuning::kernels:
      return {in_kernels, in_any_memory};
    default:  // a fabric's are not measured on one, and differ from a network's only where `tune` finds that
      return {over_far_links, over_network};
  }
}

}  // namespace ringreduce
