#include "transport/ofi/choice.h"

#include <algorithm>
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
    if (!wish.domain.empty() && wish.domain != domain_of(*info)) continue;
    if (wish.must_be_faster && !offer.card) continue;
    if (found.empty() || doubt(offer, wish) < doubt(found[0], wish)) {
      found = {offer};
      continue;
    }
    const auto is_known = [&](const Offer& one) { return domain_of(*one.info) == domain_of(*info); };
    if (doubt(offer, wish) == doubt(found[0], wish) && provider == found[0].info->fabric_attr->prov_name &&
        std::none_of(found.begin(), found.end(), is_known)) {
      found.push_back(offer);
    }
  }
  return found;
}

std::string why_none_is_used(const std::vector<Card>& cards, const Wish& wish) {
  if (!wish.provider.empty()) return "RINGREDUCE_OFI_PROVIDER asks for one that uses no card";
  if (!wish.domain.empty()) return "RINGREDUCE_OFI_DOMAIN asks for one that uses no card";
  const std::string why = why_no_card(cards);
  if (!why.empty()) return why;
  std::string names;
  for (const Card& card : cards) {
    if (card.up) names += (names.empty() ? "" : ", ") + card.in_words();
  }
  return "no provider of libfabric that sends tagged messages uses the host's " + names +
         "; fi_info lists providers";
}

}  // namespace

Choice choose(Info* offers, const Wish& wish) {
  const std::vector<Card> all = cards();
  std::vector<Offer> found = best(offers, wish, all);
  if (found.empty()) return {nullptr, why_none_is_used(all, wish)};
  if (!found[0].card) return {found[0].info, "no card: " + why_none_is_used(all, wish)};
  const int here = own_node();
  const auto is_far = [&](const Offer& one) { return !one.card || one.card->node != here; };
  if (!std::all_of(found.begin(), found.end(), is_far)) std::erase_if(found, is_far);
  const Offer& own = found[static_cast<std::size_t>(wish.place) % found.size()];
  return {own.info, own.card ? "card " + own.card->in_words() : "no card"};
}

}  // namespace ringreduce::ofi
