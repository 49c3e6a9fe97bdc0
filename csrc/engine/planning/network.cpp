#include "engine/planning/network.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace ringreduce {
namespace {

constexpr double as_fast = 0.7;  // of what both hosts' own links carry; measurements vary

// The measurements between hosts, by number, and each host's link as derived from them.
class Measured {
 public:
  Measured(const Links& links, const std::vector<int>& hosts)
      : links_(links), players_(speakers(hosts, links.world)), own_(players_.size()) {
    for (int a = 0; a < count(); ++a) {
      for (int b = 0; b < count(); ++b) {
        if (a == b) continue;
        if (!(rate(a, b) > 0)) throw std::invalid_argument("not all links between hosts were measured");
        own_[a] = std::max({own_[a], rate(a, b), rate(b, a), alone(a, b), alone(b, a)});
      }
    }
    level_own();
  }

  int count() const { return static_cast<int>(players_.size()); }
  double rate(int from, int to) const {
    return links_.together[players_[from] * links_.world + players_[to]];
  }
  double alone(int from, int to) const { return links_.bandwidth_of(players_[from], players_[to]); }
  double latency(int a, int b) const { return links_.latency[players_[a] * links_.world + players_[b]]; }
  double own(int host) const { return own_[host]; }
  bool near(int a, int b) const {
    return std::min(rate(a, b), rate(b, a)) >= as_fast * std::min(own(a), own(b));
  }

 private:
  // Gives hosts whose links differ by no more than measurements vary the same rate, that of the fastest.
  void level_own() {
    std::vector<double*> rates;
    for (double& rate : own_) rates.push_back(&rate);
    std::sort(rates.begin(), rates.end(), [](const double* a, const double* b) { return *a > *b; });
    double level = *rates.front();
    for (double* rate : rates) *rate = level = *rate >= as_fast * level ? level : *rate;
  }

  const Links& links_;
  const std::vector<int> players_;
  std::vector<double> own_;
};

// The first host of each host's site.
std::vector<int> sites_of(const Measured& measured) {
  std::vector<int> sites(measured.count());
  std::iota(sites.begin(), sites.end(), 0);
  for (int a = 0; a < measured.count(); ++a) {
    for (int b = 0; b < a; ++b) {
      if (!measured.near(a, b) || sites[a] == sites[b]) continue;
      const int kept = std::min(sites[a], sites[b]), other = std::max(sites[a], sites[b]);
      std::replace(sites.begin(), sites.end(), other, kept);
    }
  }
  return sites;
}

// The most that left a site, or entered it, in a round.
double most_across(const Measured& measured, const std::vector<int>& sites, int site, bool leaves) {
  double most = 0;
  for (int round = 0; round < rounds_of_tournament(measured.count()); ++round) {
    double sum = 0;
    for (int host = 0; host < measured.count(); ++host) {
      const int other = opponent(host, measured.count(), round);
      if (sites[host] != site || other < 0 || sites[other] == site) continue;
      sum += leaves ? measured.rate(host, other) : measured.rate(other, host);
    }
    most = std::max(most, sum);
  }
  return most;
}

// Over the pairs that are at one site, or over those that are not.
double least_latency(const Measured& measured, const std::vector<int>& sites, bool inside) {
  double least = -1;
  for (int a = 0; a < measured.count(); ++a) {
    for (int b = 0; b < a; ++b) {
      if ((sites[a] == sites[b]) != inside) continue;
      if (least < 0 || measured.latency(a, b) < least) least = measured.latency(a, b);
    }
  }
  return std::max(least, 0.0);
}

}  // namespace

// Nodes: each host, and the switch's end of its link; each site's switch, in the place of the site's first
// host; the backbone.
Network network_of(const Links& links, const std::vector<int>& hosts) {
  const Measured measured(links, hosts);
  const std::vector<int> sites = sites_of(measured);
  const int count = measured.count(), backbone = 3 * count;
  const auto end = [=](int host) { return count + host; };
  const auto hub = [&](int host) { return 2 * count + sites[host]; };
  const double inside = least_latency(measured, sites, true),
               across = std::max(least_latency(measured, sites, false) - inside, 0.0);
  Network network;
  network.nodes = 3 * count + 1;
  network.cores.resize(network.nodes);
  const std::vector<int> players = speakers(hosts, links.world);
  for (int rank = 0; rank < links.world; ++rank) {
    const int first =
        hosts.empty() ? rank
                      : static_cast<int>(std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin());
    network.node_of.push_back(
        static_cast<int>(std::find(players.begin(), players.end(), first) - players.begin()));
  }
  const double plenty = 1 + 100 * *std::max_element(links.together.begin(), links.together.end());
  const auto join = [&](int a, int b, double there, double back, double latency) {
    // Not 0, even if there was no host to measure it with.
    network.links.push_back({a, b, std::max(there, 1.0), latency});
    network.links.push_back({b, a, std::max(back, 1.0), latency});
  };
  for (int host = 0; host < count; ++host) {
    join(host, end(host), measured.own(host), measured.own(host), inside / 2);
    join(end(host), hub(host), plenty, plenty, 0);
    if (sites[host] == host)
      join(hub(host), backbone, most_across(measured, sites, host, true),
           most_across(measured, sites, host, false), across / 2);
    for (int other = 0; other < host; ++other) {
      if (sites[host] == sites[other] && !measured.near(host, other))
        join(end(host), end(other), measured.rate(host, other), measured.rate(other, host), 0);
    }
  }
  return network;
}

}  // namespace ringreduce
