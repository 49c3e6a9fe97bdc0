// The memory orders of what ranks tell each other in shared memory, by what they order. Only this file names
// them: tests/engine/memory_model reads it, and has a tool check the protocols with these orders, on paper,
// under the models of C++, ARM and x86. docs/decisions.md has the result.
#pragma once

#include <atomic>

namespace ringreduce::order {

inline constexpr auto relaxed = std::memory_order_relaxed;
inline constexpr auto acquire = std::memory_order_acquire;
inline constexpr auto release = std::memory_order_release;
inline constexpr auto strict = std::memory_order_seq_cst;  // one order of all of them, for all ranks

// Slot and flag, lend and grant, the reuse of slots and arenas.
inline constexpr auto message_written = release;  // a slot's flag, after its payload
inline constexpr auto message_seen = acquire;
inline constexpr auto message_read = release;  // the acknowledgement, after all use of the payload
inline constexpr auto room_seen = acquire;     // of an acknowledgement, before the room is used again

// Doorbells.
inline constexpr auto asleep = strict;          // the count of sleepers, before the last look at the messages
inline constexpr auto sleepers_seen = relaxed;  // a message's store may still be in flight: see ring()
inline constexpr auto rung = release;           // after what the sleeper shall find
inline constexpr auto armed = acquire;          // before the sleeper looks for it

// A group's end. An access and an abort, each of which writes a word and then looks at the other's.
inline constexpr auto access_begun = strict;
inline constexpr auto abort_seen_by_access = strict;
inline constexpr auto access_ended = release;
inline constexpr auto abort_told = strict;  // after its reason
inline constexpr auto accesses_seen = strict;
inline constexpr auto abort_seen = acquire;  // before its reason is read
// Fence: before what was lent changes although peers may still read it.
inline constexpr auto abort_is_out = release;
inline constexpr auto lent_was_read = acquire;  // fence: after such reads, before the look for an abort
inline constexpr auto all_sent = release;       // `closed`, after the last message
inline constexpr auto closed_seen = acquire;    // before the last look for one

// What ranks compare, and what they say while they wait.
inline constexpr auto history_written = release;  // after the count that says that its place will be written
inline constexpr auto call_recorded = release;    // the count of calls, after the record
inline constexpr auto calls_seen = acquire;
inline constexpr auto history_seen = acquire;  // fence: before the second look at the count
inline constexpr auto said = release;          // the time, after the rank that is waited for
inline constexpr auto said_seen = acquire;
inline constexpr auto board_opened = release;  // fence: between the odd version and the words
inline constexpr auto board_written = release;
inline constexpr auto board_seen = acquire;
inline constexpr auto board_read = acquire;  // fence: between the words and the second look at the version

}  // namespace ringreduce::order
