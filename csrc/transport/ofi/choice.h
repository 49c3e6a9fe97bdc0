// Which of libfabric's offers a rank takes.
#pragma once

#include <string>
#include <vector>

#include "transport/ofi/libfabric.h"

namespace ringreduce::ofi {

// What a rank asks for.
struct Wish {
  std::string provider;              // empty: any
  std::vector<std::string> domains;  // empty: any
  std::string reads;                 // remotely: "1", "0", or what suits the provider
  bool must_be_faster = false;       // than sockets
  int place = 0, ranks = 1;          // of the rank's host, which share its domains
};

struct Choice {
  struct Domain {
    Info* info;
    std::string card;  // in words, or why there is none
  };
  std::vector<Domain> domains;    // of one provider, the nearest first; empty: no offer is fit
  std::string why_none, missing;  // a domain that is wished for
};

// Providers that reach a card go first, then those that are as fast as sockets. libfabric's order decides
// between providers. The ranks of a host share its cards, or the domains that are wished for: each takes as
// many as there are for it, at least one, and first those that are nearest to this thread's cores.
Choice choose(Info* offers, const Wish& wish);

}  // namespace ringreduce::ofi
