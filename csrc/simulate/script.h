// A schedule as the simulator reads it: who sends how much to whom in which round, without the contents.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// A message, or a local step. Chunks are counted, and taken to be of one length.
struct Post {
  int ahead = 0;  // how many ranks ahead the peer is, modulo the world; 0: a local step
  int chunks = 0;
  bool reduce = false;
  friend bool operator==(const Post&, const Post&) = default;
};

// Two ranks have equal scripts if their schedules are equal relative to the rank.
class Script {
 public:
  explicit Script(const Schedule& schedule);

  // Only rounds in which the rank does something.
  int rounds() const { return static_cast<int>(numbers_.size()); }
  // The number of that round in the schedule.
  int number(int round) const { return numbers_[round]; }
  // The nearest peer ahead comes first. A transport serves all peers at once, so ranks do not all start with
  // the lowest-numbered peer.
  std::span<const Post> sends(int round) const { return part(sends_, sends_end_, round); }
  // The index of the round's first send among all sends.
  std::size_t first_send(int round) const { return round == 0 ? 0 : sends_end_[round - 1]; }
  // Receives, and local steps.
  std::span<const Post> works(int round) const { return part(works_, works_end_, round); }
  // The most chunks in one round, however many peers get them: it decides the length of slices.
  int heaviest_round() const { return heaviest_round_; }
  std::size_t sends() const { return sends_.size(); }
  std::size_t posts() const { return sends_.size() + works_.size(); }
  std::size_t chunks() const;  // of all posts

  // Whether the same data goes to and comes from the same ranks in two rounds.
  bool alike(int round, int other) const;
  void leave_out(int first, int rounds);

  friend bool operator==(const Script&, const Script&) = default;

 private:
  using Ends = std::vector<std::size_t>;
  static std::span<const Post> part(const std::vector<Post>& posts, const Ends& ends, int round) {
    const std::size_t begin = round == 0 ? 0 : ends[round - 1];
    return {posts.data() + begin, ends[round] - begin};
  }

  std::vector<Post> sends_, works_;
  Ends sends_end_, works_end_;  // by round
  std::vector<int> numbers_;    // by round
  int heaviest_round_ = 0;
};

}  // namespace ringreduce
