// Which of libfabric's offers a rank takes.
#pragma once

#include <string>

#include "transport/ofi/libfabric.h"

namespace ringreduce::ofi {

// What a rank asks for.
struct Wish {
  std::string provider, domain;  // empty: any
  std::string reads;             // remotely: "1", "0", or what suits the provider
  bool must_be_faster = false;   // than sockets
  int place = 0;                 // of the rank among those of its host, which share the host's cards
};

struct Choice {
  Info* info = nullptr;  // null: no offer is fit
  std::string card;      // in words, or why there is none
};

// Providers that reach a card go first, with the card that is nearest to this thread's cores; then those that
// are as fast as sockets. libfabric's order decides between providers.
Choice choose(Info* offers, const Wish& wish);

}  // namespace ringreduce::ofi
