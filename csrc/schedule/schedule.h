// Schedules: what each rank does in a collective, as data. No I/O, no clock, no tensor, no thread.
//
// Vocabulary. A *chunk* is a part of the user's buffer that a schedule names by number. The engine decides
// its length and place. Chunks [0, chunks) are the user's, chunks [chunks, chunks + scratch) are temporary. A
// *round* is everything that may proceed at the same time.
//
// The meaning of the user's chunks in each collective (world = n, this rank = r):
//   all_reduce      any number of chunks; every rank starts with its own values and ends with the sums
//   reduce_scatter  n chunks; rank r ends with the sum of all ranks' chunk r; its other chunks are spoilt
//   all_gather      n chunks; rank r starts with chunk r only and ends with all of them
//   broadcast       any number of chunks; only the root starts with values, all end with them
//   reduce          any number of chunks; only the root ends with the sums; other ranks' chunks are spoilt
//   gather          n chunks; rank r starts with chunk r, the root ends with all; others' chunks are spoilt
//   scatter         n chunks; the root starts with all, rank r ends with chunk r; its other chunks are spoilt
//   all_to_all      n chunks; before: chunk j is meant for rank j; after: chunk j came from rank j
//   scan            any number of chunks; rank r ends with the sums of ranks 0 to r
//   exscan          any number of chunks; rank r ends with the sums of ranks 0 to r - 1; rank 0 keeps its own
//   barrier         no chunks; messages carry nothing
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/collective.h"

namespace ringreduce {

// The run of chunks [first, first + count).
struct Span {
  int first = 0;
  int count = 0;
  friend bool operator==(const Span&, const Span&) = default;
};

template <class Visit>
void each_chunk(const Span& span, Visit visit) {
  for (int chunk = span.first; chunk < span.first + span.count; ++chunk) visit(chunk);
}
template <class Visit>
void each_chunk(const std::vector<Span>& spans, Visit visit) {
  for (const Span& span : spans) each_chunk(span, visit);
}
int chunks_in(const std::vector<Span>& spans);

// One message: the named chunks in order, with their values at the beginning of the round, to every peer of a
// set (a set, so that shared memory publishes once for many readers). A barrier's message has no chunks.
struct Send {
  std::vector<Span> chunks;
  std::vector<int> peers;  // ascending, without this rank
  friend bool operator==(const Send&, const Send&) = default;
};

// The other end: the k-th Recv from a peer takes the k-th Send of that peer to this rank. The values replace
// the named chunks or are reduced into them. Several reducing Recvs of the same chunks in one round are
// combined at once, in rank order, with this rank's own value in its place: ((x0 + x1) + x2) + ...
struct Recv {
  std::vector<Span> chunks;
  int peer = 0;
  bool reduce = false;
  friend bool operator==(const Recv&, const Recv&) = default;
};

// A copy (or reduction) between two runs of this rank's own chunks, with the source's value at the beginning
// of the round.
struct Local {
  Span to;
  Span from;
  bool reduce = false;
  friend bool operator==(const Local&, const Local&) = default;
};

// In a round, at most one message goes to each peer, and at most one comes from each. No chunk is both
// replaced and written in another way. A chunk that is sent and received into in the same round is sent with
// its old value.
struct Round {
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::vector<Local> locals;
  friend bool operator==(const Round&, const Round&) = default;
};

struct Schedule {
  Collective collective = Collective::all_reduce;
  int world = 1;
  int rank = 0;
  int root = 0;  // of broadcast, reduce, gather, scatter
  int chunks = 1;
  int scratch = 0;  // temporary chunks, after the others
  std::vector<Round> rounds;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// The order in which the ranks' values are combined to each element of a result.
enum class Order : std::uint8_t {
  any,
  kept,     // rank order, grouped in any way: enough for an operator that does not commute
  at_once,  // ((r0 + r1) + r2) + ..., rounded once: the same bits in any place
};
constexpr std::string_view name_of(Order order) {
  return order == Order::any ? "any" : order == Order::kept ? "kept" : "at_once";
}

// The arguments of an algorithm: the rank and world that it makes a schedule for.
struct Place {
  int world = 1;
  int rank = 0;
  int root = 0;
  // Each rank's group (host), for two-level algorithms; empty: the algorithm chooses.
  std::vector<int> groups = {};
  // All ranks, in the order of rings and chains; empty: by number, but one group after the other.
  std::vector<int> order = {};
  // For the algorithm along spanning trees, a tree for each chunk: the parent of each rank, and -1 for the
  // root.
  std::vector<std::vector<int>> trees = {};
  // Each rank's core, where ranks of one host share cores; else empty.
  std::vector<int> cores = {};
};

// Whether two chunks always have the same length: the last chunks of a buffer can be shorter than the first,
// and blocks uneven. Scratch chunk `chunks` + i is as long as chunk i modulo `chunks`.
bool same_length(const Schedule& schedule, int a, int b);

// Whether this rank starts with a value in this chunk.
bool starts_with_value(const Schedule& schedule, int chunk);

// Whether this chunk of this rank holds the collective's result at the end (other chunks may be spoilt). The
// engine divides an average there: right after the last write of such a chunk, if that write reduces.
bool holds_result(const Schedule& schedule, int chunk);

// A pure function. The place must be valid: 0 <= rank < world, 0 <= root < world, groups empty or one per
// rank, order empty or all ranks, trees spanning.
using Algorithm = Schedule (*)(const Place&);

}  // namespace ringreduce
