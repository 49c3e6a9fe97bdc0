// The fabric cards of this host, as Linux's sysfs lists them: to look there takes microseconds, and to load
// libfabric half a second.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringreduce::ofi {

// A network card that programs reach without the kernel.
struct Card {
  std::string name;    // such as mlx5_0
  std::string driver;  // such as mlx5_core
  std::string rate;    // in words, if it is known
  int node = -1;       // of NUMA; -1: unknown
  bool up = false;     // whether one of its ports is connected

  std::string in_words() const;
};

// All cards, by name. Devices that the kernel pretends (rxe, siw) are none.
std::vector<Card> cards();
// In words; why no provider can be faster than sockets on this host, or empty if one may be.
std::string why_no_card(const std::vector<Card>& cards);

// Whether a provider needs cards of some kind: it is then faster than sockets if it finds one.
bool needs_card(std::string_view provider);
// The card that a provider uses under a domain of this name; null if there is none that is up.
const Card* card_of(std::string_view provider, std::string_view domain, const std::vector<Card>& cards);

// The NUMA node of all cores that this thread may use; -1: several, or unknown.
int own_node();

}  // namespace ringreduce::ofi
