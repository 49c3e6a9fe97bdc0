// Measures the links between hosts. One rank of each host speaks for it; they meet in pairs, every host in
// one pair at a time, as in a tournament: so a link that several pairs share shows, and none is measured
// twice.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "engine/communicator.h"
#include "engine/planning/links.h"

namespace ringreduce {
namespace {

constexpr int pings = 5;
constexpr std::size_t first_bytes = std::size_t{64} << 10, most_bytes = std::size_t{4} << 20;
constexpr double long_enough = 8e-3;  // seconds that a transfer must take to be believed
constexpr double still_grows = 1.25;
constexpr double patience = 0.3;  // seconds for a pair
constexpr int most_rounds = 15;   // unasked: all pairs of 16 hosts, some of more
constexpr int tag = std::numeric_limits<int>::max();

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Whom one of so many meets in a round; -1: nobody, or one who is not there. The circle method: the last one
// stays where he is, and the others go round.
int opponent(int player, int players, int round) {
  const int even = players + players % 2, circle = even - 1;
  int other = 0;
  if (player == circle) {
    while ((2 * other - round) % circle != 0) ++other;
  } else {
    other = ((round - player) % circle + circle) % circle;
    if (other == player) other = circle;
  }
  return other < players ? other : -1;
}

bool wanted_by_environment() {
  const char* set = std::getenv("RINGREDUCE_LINKS");
  const std::string_view value = set ? set : "";
  if (value == "" || value == "auto") return true;
  if (value == "off") return false;
  throw InvalidArgument("RINGREDUCE_LINKS must be auto or off, not '" + std::string(value) + "'");
}

Transfer message(bool sends, int peer, void* data, std::size_t bytes) {
  return {.sends = sends, .peer = peer, .data = data, .count = bytes, .dtype = DType::uint8, .tag = tag};
}

void swap(Communicator& group, int peer, void* out, void* in, std::size_t bytes) {
  group.swap(message(true, peer, out, bytes), message(false, peer, in, bytes));
}

// One way, in seconds, for whoever leads; the other answers, and gets 0.
double latency_to(Communicator& group, int peer) {
  double least = std::numeric_limits<double>::max();
  const bool leads = group.rank() < peer;
  std::uint8_t byte = 0;
  const Transfer out = message(true, peer, &byte, 1), in = message(false, peer, &byte, 1);
  for (int i = 0; i <= pings; ++i) {
    const auto start = Clock::now();
    group.transfer(leads ? out : in);
    group.transfer(leads ? in : out);
    if (i > 0) least = std::min(least, since(start));  // before, there may have been no connection
  }
  return leads ? least / 2 : 0;
}

// In both directions at once, in bytes a second: the best of several, because what disturbs a transfer only
// makes it slower. Buffers grow until they take long enough and are not faster for being larger, as they are
// on a connection that begins slowly. What counts is the slower end's time: who comes late finds bytes that
// have been on their way for a while.
double bandwidth_to(Communicator& group, int peer, double latency) {
  std::vector<std::byte> out(most_bytes), in(most_bytes);
  double theirs = 0;
  swap(group, peer, &latency, &theirs, sizeof latency);
  latency = std::max(latency, theirs);
  double best = 0, before = 0;
  const auto begin = Clock::now();
  int counted = 0;
  for (std::size_t bytes = first_bytes; counted < 2; bytes = std::min(2 * bytes, most_bytes)) {
    const auto start = Clock::now();
    swap(group, peer, out.data(), in.data(), bytes);
    double own[2] = {since(start), since(begin)};
    double other[2];
    swap(group, peer, own, other, sizeof own);
    const double all = std::max(own[0], other[0]), so_far = std::max(own[1], other[1]);
    // An offer, its answer and the last byte are each on the way once.
    const double taken = std::max(all - 3 * latency, all / 8);
    const double reached = static_cast<double>(bytes) / taken;
    const bool counts = bytes == most_bytes || taken > long_enough;
    if (counts) best = std::max(best, reached);
    if (counts && reached < still_grows * before) ++counted;
    before = reached;
    if (so_far > patience) return std::max(best, reached);
  }
  return best;
}

Links survey(Communicator& group, const std::vector<int>& hosts, int most) {
  const int size = group.size();
  const std::vector<int> players = speakers(hosts, size);
  const int count = static_cast<int>(players.size());
  const int rounds = std::min(most, count + count % 2 - 1);
  const auto self = std::find(players.begin(), players.end(), group.rank());
  std::vector<double> own(2 * players.size()), all(own.size() * static_cast<std::size_t>(size));
  for (int round = 0; self != players.end() && count > 1 && round < rounds; ++round) {
    const int other = opponent(static_cast<int>(self - players.begin()), count, round);
    if (other < 0) continue;
    own[other] = latency_to(group, players[other]);
    own[players.size() + other] = bandwidth_to(group, players[other], own[other]);
  }
  Call call;
  call.collective = Collective::all_gather;
  call.dtype = DType::float64;
  call.count = own.size();
  call.input = own.data();
  call.output = all.data();
  group.run(call);
  Links links;
  links.world = size;
  links.latency.resize(static_cast<std::size_t>(size) * static_cast<std::size_t>(size));
  links.bandwidth = links.latency;
  const auto told = [&](int by, std::size_t what) { return all[own.size() * players[by] + what]; };
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      links.latency_of(players[i], players[j]) = told(std::min(i, j), std::max(i, j));
      links.bandwidth_of(players[i], players[j]) = told(j, players.size() + i);
    }
  }
  return links;
}

}  // namespace

void Communicator::know(Links links) {
  const std::lock_guard lock(calls_.collective);
  links_ = std::move(links);
  calls_.planner.know(ringreduce::ring_order(links_, calls_.transport->hosts()), pace(links_));
}

Links Communicator::measure_links() {
  Call barrier;
  barrier.collective = Collective::barrier;
  run(barrier);  // behind what is under way
  know(survey(*this, calls_.transport->hosts(), std::numeric_limits<int>::max()));
  return links_;
}

// Only if all ranks want it.
void Communicator::measure_links_if_far() {
  if (size() == 1 || !calls_.transport->distant()) return;
  std::uint8_t wanted = wanted_by_environment();
  Call call;
  call.op = Op::min;
  call.dtype = DType::uint8;
  call.count = 1;
  call.input = call.output = &wanted;
  run(call);
  if (wanted) know(survey(*this, calls_.transport->hosts(), most_rounds));
}

}  // namespace ringreduce
