// algorithm="auto": which algorithm for which size, from measurements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "schedule/catalogue.h"

namespace ringreduce {

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;
inline constexpr int any_world = 1 << 30;

// One measured choice. The first row that fits is taken. The last row of every collective fits everything,
// and names an algorithm that keeps rank order.
struct TuningRow {
  Collective collective;
  int max_world;          // fits worlds up to this one
  int oversubscribed;     // 1: only if ranks outnumber cores, 0: only if they do not, -1: either
  std::size_t max_bytes;  // fits buffers up to this size
  std::string_view algorithm;
  std::size_t slice_bytes;  // bytes of one round's messages in one slice
  int lanes;                // slices in flight
  double from_pace = 1;     // fits only from this pace on
  int eager = 0;            // if not 0, fits only buffers up to so many times Situation::longest_eager
  double from_rate = 0;     // fits only links between hosts of so many bytes per second
};

// The kinds of engines and transports that have tables of their own.
enum class Tuning : std::uint8_t {
  memory,
  network,
  fabric,
  hosts_of_several,
  hosts_of_several_on_a_fabric,
  mpi,
  kernels
};
// The kind of a transport, by name. Throws Error if there is none for it.
Tuning tuning_of(std::string_view transport);

// The properties of a call that a choice depends on.
struct Situation {
  Collective collective;
  int world = 1;
  bool oversubscribed = false;
  Tuning tuning = Tuning::memory;
  std::size_t bytes = 0;  // of the whole buffer: of all chunks together
  // Both skip rows whose reduction does not combine all values at once, in rank order.
  bool reproducible = false;
  bool coded = false;  // messages are encoded, and each further combination would round once more
  bool commutes =
      true;            // if not, skips rows whose reduction combines in another order than that of the ranks
  double pace = 1;     // see pace(): buffers count as so many times smaller, slices are so much longer
  double latency = 0;  // seconds that a message travels; 0 if that is unknown
  double rate = 0;     // bytes per second of a link; 0 if that is unknown
  std::size_t longest_eager = 0;  // as of a Transport
};

// "16 KiB".
std::string in_units(std::size_t bytes);

struct Tuned;

struct Choice {
  const Entry* entry = nullptr;
  std::size_t slice_bytes = 0;
  int lanes = 1;
  const TuningRow* row = nullptr;  // that it was made by; null: none
  bool tuned = false;              // the row is one of this machine's
};

// In the order in which they are searched.
using TuningTables = std::array<std::span<const TuningRow>, 3>;
TuningTables tuning_tables(Tuning tuning);
// `tuned`: rows that are searched before the tables; may be null.
Choice choose(const Situation& situation, const Tuned* tuned);
// In words; the choice has a row.
std::string reason_for(const Choice& choice, const Situation& situation, const Tuned* tuned);

}  // namespace ringreduce
