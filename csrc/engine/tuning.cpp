#include "engine/tuning.h"

#include "engine/program.h"

namespace ringreduce {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

std::string in_units(std::size_t bytes) {
  if (bytes >= MiB && bytes % MiB == 0) return std::to_string(bytes / MiB) + " MiB";
  if (bytes >= KiB && bytes % KiB == 0) return std::to_string(bytes / KiB) + " KiB";
  return std::to_string(bytes) + " B";
}

bool fits(const TuningRow& row, const Situation& s) {
  return row.collective == s.collective && s.world <= row.max_world && s.bytes <= row.max_bytes &&
         (row.oversubscribed < 0 || (row.oversubscribed != 0) == s.oversubscribed);
}

}  // namespace

Choice choose(const Situation& s) {
  for (const TuningRow& row : tuning_table(s.transport)) {
    if (!fits(row, s)) continue;
    const Entry* entry = find_algorithm(s.collective, row.algorithm);
    if ((s.reproducible || s.coded) && reduces(s.collective) && !entry->keeps_rank_order) continue;
    std::string reason = "measured as the fastest " + std::string(name_of(s.collective)) + " for ";
    reason +=
        row.max_bytes == ~std::size_t{0} ? "larger buffers" : "buffers up to " + in_units(row.max_bytes);
    if (row.max_world < any_world) reason += " on up to " + std::to_string(row.max_world) + " ranks";
    if (row.oversubscribed > 0) reason += ", more ranks than cores";
    if (row.oversubscribed == 0) reason += ", a core for each rank";
    if (s.reproducible && reduces(s.collective)) reason += ", of those that keep rank order";
    if (s.coded && reduces(s.collective)) reason += ", of those that round once on each side";
    return {entry, row.slice_bytes, row.lanes, reason};
  }
  return {};  // cannot be: every collective has a row that fits everything (tested)
}

Choice choose_slices(const Situation& s, const Entry* entry, std::string reason) {
  Choice choice = choose(s);
  choice.entry = entry;
  choice.reason = std::move(reason);
  return choice;
}

}  // namespace ringreduce
