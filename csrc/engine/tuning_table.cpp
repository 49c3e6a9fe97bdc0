// The measured table behind algorithm="auto".
#include "engine/tuning.h"

namespace ringreduce {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, all = ~std::size_t{0};
using C = Collective;

constexpr TuningRow table[] = {
    // measured, by bench/tune.py
    // not measured
    {C::all_reduce, any_world, -1, 8 * KiB, "one_shot", 64 * KiB},
    {C::all_reduce, any_world, -1, 1 * MiB, "two_shot", 64 * KiB},
    {C::all_reduce, any_world, -1, all, "two_shot", 256 * KiB},
    {C::reduce_scatter, any_world, -1, all, "direct", 256 * KiB},
    {C::all_gather, any_world, -1, all, "direct", 256 * KiB},
    {C::broadcast, any_world, -1, all, "direct", 256 * KiB},
    {C::reduce, any_world, -1, all, "direct", 256 * KiB},
    {C::gather, any_world, -1, all, "direct", 256 * KiB},
    {C::scatter, any_world, -1, all, "direct", 256 * KiB},
    {C::all_to_all, any_world, -1, all, "direct", 256 * KiB},
    {C::barrier, any_world, -1, all, "dissemination", 64 * KiB},
};

}  // namespace

std::span<const TuningRow> tuning_table() {
  return table;
}

}  // namespace ringreduce
