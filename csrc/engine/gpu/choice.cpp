#include "engine/gpu/choice.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "engine/gpu/kernels/cuda/errand.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr const char* variable = "RINGREDUCE_GPU_TRANSPORT";

std::string wanted_by_environment() {
  const char* const set = std::getenv(variable);
  const std::string value = set ? set : "";
  if (value == "" || value == "auto") return "";
  if (value == "cuda" || value == "nccl") return value;
  throw InvalidArgument(std::string(variable) + " must be auto, cuda or nccl, not '" + value + "'");
}

bool has_several_hosts(const Transport& transport) {
  const std::vector<int> hosts = transport.hosts();
  return std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
}

}  // namespace

bool agree_on_nccl(const Transport& transport, const Exchange& exchange) {
  const std::vector<std::string> wanted = exchange_or_fail(exchange, wanted_by_environment);
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (wanted[rank] == wanted[0]) continue;
    const auto named = [](const std::string& value) { return value.empty() ? "unset" : value; };
    throw Error(std::string(variable) + " is " + named(wanted[0]) + " on rank 0 and " + named(wanted[rank]) +
                " on rank " + std::to_string(rank));
  }
  if (!wanted[0].empty()) return wanted[0] == "nccl";
  return has_several_hosts(transport) || transport.distant();
}

void check_that_kernels_serve(const Transport& transport) {
  if (transport.world > device::most_ranks) {
    throw InvalidArgument("a group of " + std::to_string(transport.world) +
                          " ranks is too large for GPUs, which serve " + std::to_string(device::most_ranks));
  }
  if (has_several_hosts(transport)) {
    throw InvalidArgument("arrays in GPU memory are served where all ranks share a host, and these do not");
  }
}

}  // namespace ringreduce
