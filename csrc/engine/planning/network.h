// A network that has the links which were measured.
#pragma once

#include <vector>

#include "engine/planning/links.h"
#include "simulate/network.h"

namespace ringreduce {

// Hosts that are as fast together as their own links allow are at one site, with a switch. Sites are joined
// by a backbone, and what a site's hosts got through at once at best is the rate of its way there. Hosts of
// one site whose link is slow all the same have it for themselves.
//
// `hosts`: which ranks share one; empty: none do. Throws std::invalid_argument if not all links are known.
Network network_of(const Links& links, const std::vector<int>& hosts);

}  // namespace ringreduce
