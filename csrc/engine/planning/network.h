// Derives a network from the measured links.
#pragma once

#include <vector>

#include "engine/planning/links.h"
#include "simulate/network.h"

namespace ringreduce {

// Hosts that are as fast together as their own links allow are at one site, with a switch. A backbone joins
// the sites. A site's link to it has the best rate that the site's hosts reached together. If the link
// between two hosts of one site is slow nevertheless, they get a separate link.
//
// `hosts`: the host of each rank; empty: no two ranks share one. Throws std::invalid_argument if some links
// are unknown.
Network network_of(const Links& links, const std::vector<int>& hosts);

}  // namespace ringreduce
