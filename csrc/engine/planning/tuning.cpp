#include "engine/planning/tuning.h"

#include <algorithm>

#include "engine/planning/tuned.h"
#include "engine/program/program.h"

namespace ringreduce {
namespace {

bool fits(const TuningRow& row, const Situation& s) {
  return row.collective == s.collective && s.world <= row.max_world &&
         static_cast<double>(s.bytes) <= s.pace * static_cast<double>(row.max_bytes) &&
         (row.eager == 0 || s.bytes <= static_cast<std::size_t>(row.eager) * s.longest_eager) &&
         (row.oversubscribed < 0 || (row.oversubscribed != 0) == s.oversubscribed) &&
         s.pace >= row.from_pace && s.rate >= row.from_rate;
}

constexpr double far_away = 10e-3;  // seconds: half the round trip between continents
constexpr double far_rate = 118e6;  // bytes per second, on a wire of which no measurement is trusted

// Lengthens slices so that those in flight keep the wire busy while a message travels. More than a megabyte
// overflows queues on the path, but a long wire holds more than that itself. How fast such a wire is shows
// only after many round trips, so a common rate is assumed: too long a slice costs little, because no round
// waits for a part of the one before.
std::size_t stretched(const TuningRow& row, double pace, double latency) {
  const auto lanes = static_cast<std::size_t>(row.lanes);
  if (latency >= far_away) {
    const auto on_the_way = static_cast<std::size_t>(std::min(latency, 1.0) * far_rate);
    return std::max(4 * on_the_way / lanes / (64 * KiB) * (64 * KiB), row.slice_bytes);
  }
  const std::size_t most = std::max(1 * MiB / lanes, row.slice_bytes);
  std::size_t slice = row.slice_bytes;
  while (pace >= 2 && slice < most) {
    slice = std::min(2 * slice, most);
    pace /= 2;
  }
  return slice;
}

// Empty if the row does not fit.
Choice chosen_by(const TuningRow& row, const Situation& s, bool tuned) {
  if (!fits(row, s)) return {};
  const Entry* entry = find_algorithm(s.collective, row.algorithm);
  const Order least = s.reproducible || s.coded ? Order::at_once : s.commutes ? Order::any : Order::kept;
  if (reduces(s.collective) && entry->order < least) return {};
  return {entry, stretched(row, s.pace, s.latency), row.lanes, &row, tuned};
}

}  // namespace

std::string reason_for(const Choice& choice, const Situation& s, const Tuned* tuned) {
  const TuningRow& row = *choice.row;
  std::string reason = std::string(choice.tuned ? "tuned here: " : "") + "measured as the fastest " +
                       std::string(name_of(s.collective)) + " for ";
  reason += row.max_bytes == ~std::size_t{0} ? "larger buffers" : "buffers up to " + in_units(row.max_bytes);
  if (row.eager == 1) reason += " that leave at once";
  if (row.eager == 2) reason += " of which half leaves at once";
  if (row.max_world < any_world) reason += " on up to " + std::to_string(row.max_world) + " ranks";
  if (row.oversubscribed > 0) reason += ", more ranks than cores";
  if (row.oversubscribed == 0) reason += ", a core for each rank";
  if (s.reproducible && reduces(s.collective)) reason += ", among those that keep rank order";
  if (!s.commutes && reduces(s.collective)) reason += ", among those for operators that do not commute";
  if (s.coded && reduces(s.collective)) reason += ", among those that round once on each side";
  if (s.pace > 1) reason += "; chosen for that size because of the links' latency";
  return choice.tuned || !tuned ? reason : reason + tuned->note;
}

std::string in_units(std::size_t bytes) {
  if (bytes >= MiB && bytes % MiB == 0) return std::to_string(bytes / MiB) + " MiB";
  if (bytes >= KiB && bytes % KiB == 0) return std::to_string(bytes / KiB) + " KiB";
  return std::to_string(bytes) + " B";
}

Choice choose(const Situation& s, const Tuned* tuned) {
  const std::span<const Tuned::Row> measured = tuned ? std::span(tuned->rows) : std::span<const Tuned::Row>();
  for (const auto& [tuning, row] : measured) {
    if (tuning != s.tuning) continue;
    if (const Choice choice = chosen_by(row, s, true); choice.entry) return choice;
  }
  for (const auto& table : tuning_tables(s.tuning)) {
    for (const TuningRow& row : table) {
      if (const Choice choice = chosen_by(row, s, false); choice.entry) return choice;
    }
  }
  return {};  // unreachable: every collective has a row that fits everything (tested)
}

}  // namespace ringreduce
