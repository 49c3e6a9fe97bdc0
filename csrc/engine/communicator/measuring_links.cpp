// Measures the links between hosts. One rank represents each host. These meet in pairs, every host in one
// pair at a time, as in a tournament, so links that several pairs share show, and none is measured twice.
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/communicator/communicator.h"
#include "engine/planning/links.h"
#include "engine/planning/network.h"
#include "transport/interface/environment.h"

namespace ringreduce {
namespace {

constexpr int pings = 5;
constexpr std::size_t first_bytes = std::size_t{64} << 10, most_bytes = std::size_t{4} << 20;
constexpr double long_enough = 8e-3;  // seconds that a transfer must take to be trusted
constexpr double still_grows = 1.25;
constexpr double seconds_per_pair = 0.3;
constexpr int trips_per_pair =
    50;  // or so many times the latency: a connection that starts slowly needs many trips
constexpr int most_rounds = 15;         // unless asked: all pairs of 16 hosts, some pairs of more
constexpr double together_for = 50e-3;  // seconds per round of all pairs
constexpr int tag = std::numeric_limits<int>::max();

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Transfer message(bool sends, int peer, void* data, std::size_t bytes) {
  return {.sends = sends, .peer = peer, .data = data, .count = bytes, .dtype = DType::uint8, .tag = tag};
}

void swap(Communicator& group, int peer, void* out, void* in, std::size_t bytes) {
  group.swap(message(true, peer, out, bytes), message(false, peer, in, bytes));
}

// Seconds one way, for the rank that leads. The other one answers, and gets 0.
double latency_to(Communicator& group, int peer) {
  double least = std::numeric_limits<double>::max();
  const bool leads = group.rank() < peer;
  std::uint8_t byte = 0;
  const Transfer out = message(true, peer, &byte, 1), in = message(false, peer, &byte, 1);
  for (int i = 0; i <= pings; ++i) {
    const auto start = Clock::now();
    group.transfer(leads ? out : in);
    group.transfer(leads ? in : out);
    if (i > 0) least = std::min(least, since(start));  // the first exchange may have had to connect
  }
  return leads ? least / 2 : 0;
}

// Bytes per second, in both directions at once. Takes the best of several transfers, because disturbances
// only make them slower. Buffers grow until they take long enough and larger ones are not faster, as they are
// on a connection that starts slowly. The slower end's time counts, because a rank that comes late finds
// bytes that have already arrived.
double bandwidth_to(Communicator& group, int peer, double latency) {
  std::vector<std::byte> out(most_bytes), in(most_bytes);
  double theirs = 0;
  swap(group, peer, &latency, &theirs, sizeof latency);
  latency = std::max(latency, theirs);
  double best = 0, before = 0;
  const double limit = std::max(seconds_per_pair, trips_per_pair * latency);
  const auto begin = Clock::now();
  int counted = 0;
  for (std::size_t bytes = first_bytes; counted < 2; bytes = std::min(2 * bytes, most_bytes)) {
    const auto start = Clock::now();
    swap(group, peer, out.data(), in.data(), bytes);
    double own[2] = {since(start), since(begin)};
    double other[2];
    swap(group, peer, own, other, sizeof own);
    const double all = std::max(own[0], other[0]), so_far = std::max(own[1], other[1]);
    // An offer, its answer and the last byte each cross the link once.
    const double taken = std::max(all - 3 * latency, all / 8);
    const double reached = static_cast<double>(bytes) / taken;
    const bool counts = bytes == most_bytes || taken > long_enough;
    if (counts) best = std::max(best, reached);
    if (counts && reached < still_grows * before) ++counted;
    before = reached;
    if (so_far > limit) return std::max(best, reached);
  }
  return best;
}

// Every player's figures, from all ranks: by rank and figure.
std::vector<double> told_to_all(Communicator& group, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  Call call;
  call.collective = Collective::all_gather;
  call.dtype = DType::float64;
  call.count = own.size();
  call.input = own.data();
  call.output = all.data();
  group.run(call);
  return all;
}

Links survey(Communicator& group, const std::vector<int>& hosts, int most) {
  const int size = group.size();
  const std::vector<int> players = speakers(hosts, size);
  const int count = static_cast<int>(players.size());
  const int rounds = std::min(most, rounds_of_tournament(count));
  const auto self = std::find(players.begin(), players.end(), group.rank());
  std::vector<double> own(2 * players.size());
  for (int round = 0; self != players.end() && count > 1 && round < rounds; ++round) {
    const int other = opponent(static_cast<int>(self - players.begin()), count, round);
    if (other < 0) continue;
    own[other] = latency_to(group, players[other]);
    own[players.size() + other] = bandwidth_to(group, players[other], own[other]);
  }
  const std::vector<double> all = told_to_all(group, own);
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

// The bytes per second that come from a peer while messages of one size go both ways without a break. Each
// message says for how long its sender has been sending, so that both stop after the same one.
double steady_rate(Communicator& group, int peer, std::size_t bytes) {
  std::vector<std::byte> out(bytes), in(bytes);
  const auto begin = Clock::now();
  for (double received = static_cast<double>(bytes);; received += static_cast<double>(bytes)) {
    const double own = since(begin);
    double theirs = 0;
    std::memcpy(out.data(), &own, sizeof own);
    swap(group, peer, out.data(), in.data(), bytes);
    std::memcpy(&theirs, in.data(), sizeof theirs);
    if (std::max(own, theirs) > together_for) return received / since(begin);
  }
}

// Measures all pairs of a round at once. Messages are so long that waiting for each other hardly counts.
void survey_together(Communicator& group, const std::vector<int>& hosts, Links& links) {
  const std::vector<int> players = speakers(hosts, group.size());
  const int count = static_cast<int>(players.size());
  const auto self = std::find(players.begin(), players.end(), group.rank());
  std::vector<double> own(players.size());
  for (int round = 0; count > 1 && round < rounds_of_tournament(count); ++round) {
    Call barrier;
    barrier.collective = Collective::barrier;
    group.run(barrier);
    if (self == players.end()) continue;
    const int other = opponent(static_cast<int>(self - players.begin()), count, round);
    if (other < 0) continue;
    const int me = group.rank(), peer = players[other];
    const double slower = std::min(links.bandwidth_of(me, peer), links.bandwidth_of(peer, me));
    const double bytes = slower * std::max(together_for / 8, 20 * links.latency_of(me, peer));
    own[other] =
        steady_rate(group, peer, std::clamp(static_cast<std::size_t>(bytes), std::size_t{64}, most_bytes));
  }
  const std::vector<double> all = told_to_all(group, own);
  links.together.assign(links.bandwidth.size(), 0);
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j)
      links.together[players[i] * links.world + players[j]] = all[own.size() * players[j] + i];
  }
}

}  // namespace

void Communicator::know(Links links) {
  const auto turn = calls_.take_turn(calls_.turn, "measure_links()", {});
  links_ = std::move(links);
  calls_.planner.know(ringreduce::ring_order(links_, calls_.transport->facts().hosts), links_);
}

Links Communicator::measure_links() {
  Call barrier;
  barrier.collective = Collective::barrier;
  run(barrier);  // after what is running
  know(survey(*this, calls_.transport->facts().hosts, std::numeric_limits<int>::max()));
  return links_;
}

void Communicator::synthesise() {
  Links links = measure_links();
  survey_together(*this, calls_.transport->facts().hosts, links);
  know(links);
  synthesise(network_of(links, calls_.transport->facts().hosts));
}

void Communicator::synthesise(Network network) {
  const auto turn = calls_.take_turn(calls_.turn, "synthesise()", {});
  calls_.planner.synthesise(std::move(network));
}

Way Communicator::synthesised(std::size_t bytes) {
  const auto turn = calls_.take_turn(calls_.turn, "synthesised", {});
  return calls_.planner.synthesised(bytes);
}

void Communicator::settle() {
  measure_links_if_far();
  introduce(log::Level::info);
}

// Only if all ranks want to.
void Communicator::measure_links_if_far() {
  if (size() == 1 || !calls_.transport->facts().distant) return;
  std::uint8_t wanted = environment("RINGREDUCE_LINKS", {"auto", "off"}) != "off";
  if (wanted && calls_.planner.is_forced(Collective::all_reduce, "synthesised")) wanted = 2;
  Call call;
  call.op = Op::min;
  call.dtype = DType::uint8;
  call.count = 1;
  call.input = call.output = &wanted;
  run(call);
  if (wanted == 2) {
    synthesise();
  } else if (wanted) {
    know(survey(*this, calls_.transport->facts().hosts, most_rounds));
  }
}

}  // namespace ringreduce
