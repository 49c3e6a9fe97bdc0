#include "transport/ofi/choice.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "transport/ofi/hardware.h"

namespace ringreduce::ofi {
namespace {

struct Offer {
  Info* info;
  const Card* card;
};

std::string_view domain_of(const Info& info) {
  return info.domain_attr->name;
}

// What only one host can use, what is slower than a socket, and what pretends to have a card, is used if it
// is asked for.
bool is_last_choice(std::string_view provider) {
  const std::string_view core = provider.substr(0, provider.find(';'));
  for (const std::string_view name : {"shm", "sm2", "udp", "sockets", "net"}) {
    if (core == name) return true;
  }
  return needs_card(provider);
}

// Of a domain in the wish, whose length says that it is not there.
std::size_t number_of(std::string_view domain, const Wish& wish) {
  const auto& all = wish.domains;
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), domain) - all.begin());
}

// The fewer the better.
int doubt(const Offer& offer, const Wish& wish) {
  const std::string_view provider = offer.info->fabric_attr->prov_name;
  if (!wish.provider.empty()) return provider == wish.provider ? 0 : 1;
  return offer.card ? 0 : is_last_choice(provider) ? 2 : 1;
}

// One for each domain of the provider that leaves the least doubt. libfabric's layers pass over the domain in
// hints.
std::vector<Offer> best(Info* offers, const Wish& wish, const std::vector<Card>& cards) {
  std::vector<Offer> found;
  for (Info* info = offers; info; info = info->next) {
    const std::string_view provider = info->fabric_attr->prov_name;
    const Offer offer{info, card_of(provider, domain_of(*info), cards)};
    if (!wish.domains.empty() && number_of(domain_of(*info), wish) == wish.domains.size()) continue;
    if (wish.must_be_faster && !offer.card) continue;
    if (found.empty() || doubt(offer, wish) < doubt(found[0], wish)) {
      found = {offer};
      continue;
    }
    const auto is_known = [&](const Offer& one) { return domain_of(*one.info) == domain_of(*info); };
    const Info& first = *found[0].info;
    if (doubt(offer, wish) == doubt(found[0], wish) && provider == first.fabric_attr->prov_name &&
        info->addr_format == first.addr_format && std::none_of(found.begin(), found.end(), is_known)) {
      found.push_back(offer);
    }
  }
  return found;
}

std::string why_none_is_used(const std::vector<Card>& cards, const Wish& wish) {
  if (!wish.provider.empty()) return "RINGREDUCE_OFI_PROVIDER asks for one that uses no card";
  if (!wish.domains.empty()) return "RINGREDUCE_OFI_DOMAIN asks for one that uses no card";
  const std::string why = why_no_card(cards);
  if (!why.empty()) return why;
  std::string names;
  for (const Card& card : cards) {
    if (card.up) names += (names.empty() ? "" : ", ") + card.in_words();
  }
  return "no provider of libfabric that sends tagged messages uses the host's " + names +
         "; fi_info lists providers";
}

// Of those that are near, ranks take turns, and each goes on with those that are far if it needs more.
void keep_own_share(std::vector<Offer>& found, const Wish& wish) {
  const auto is_near = [here = own_node()](const Offer& one) { return one.card && one.card->node == here; };
  auto far = std::stable_partition(found.begin(), found.end(), is_near);
  if (far == found.begin()) far = found.end();
  const std::size_t share = std::max<std::size_t>(found.size() / static_cast<std::size_t>(wish.ranks), 1);
  const std::size_t first = static_cast<std::size_t>(wish.place) * share;
  std::rotate(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(first) % (far - found.begin()), far);
  found.resize(share);
}

}  // namespace

Choice choose(Info* offers, const Wish& wish) {
  const std::vector<Card> all = cards();
  std::vector<Offer> found = best(offers, wish, all);
  const std::string why_none = why_none_is_used(all, wish);
  for (const std::string& name : wish.domains) {
    const auto is_it = [&](const Offer& one) { return domain_of(*one.info) == name; };
    if (std::none_of(found.begin(), found.end(), is_it)) return {{}, why_none, name};
  }
  if (found.empty()) return {{}, why_none, ""};
  const auto has_card = [](const Offer& one) { return one.card != nullptr; };
  if (wish.domains.empty() && std::any_of(found.begin(), found.end(), has_card)) {
    std::erase_if(found, std::not_fn(has_card));
  } else if (wish.domains.empty()) {
    found.resize(1);  // which of a host's other interfaces reach its peers, nobody knows
  }
  std::stable_sort(found.begin(), found.end(), [&](const Offer& one, const Offer& other) {
    return number_of(domain_of(*one.info), wish) < number_of(domain_of(*other.info), wish);
  });
  keep_own_share(found, wish);
  Choice choice;
  for (const auto& [info, card] : found) {
    choice.domains.push_back({info, card ? "card " + card->in_words() : "no card: " + why_none});
  }
  return choice;
}

}  // namespace ringreduce::ofi
