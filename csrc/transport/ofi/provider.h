// libfabric's offers, and what must be true of the one that a rank takes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ofi/choice.h"

namespace ringreduce::ofi {

struct Found {
  std::shared_ptr<Info> info;
  std::string card;  // in words
};

// What choose() takes of libfabric's offers; with remote reads if the provider has them there and they are
// wished for. At least one; throws Error, which says what is missing.
std::vector<Found> find(const Library& library, const Wish& wish);

// Whether each look for completions is a system call.
bool is_of_sockets(std::string_view provider);

}  // namespace ringreduce::ofi
