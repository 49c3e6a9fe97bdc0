// What all ranks of a group do, or none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

// What does not need the other ranks, and may fail: all get everybody's blob, or all throw Error with what
// the first of them has met with. It exchanges once.
std::vector<std::string> exchange_or_fail(const Exchange& exchange, const std::function<std::string()>& blob);

}  // namespace ringreduce
