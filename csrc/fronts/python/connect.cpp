// Communicators of ranks that meet, and of groups within this process.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/communicator/communicator.h"
#include "fronts/python/arguments.h"
#include "fronts/python/bindings.h"
#include "fronts/python/shared.h"
#include "fronts/python/values.h"
#include "transport/compose/choose.h"
#include "transport/memory/local.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using PythonExchange = nb::callable;

// If `reproducible` is None, the environment decides.
Options options_of(nb::handle timeout, nb::handle reproducible, nb::handle max_blocks, nb::handle priority) {
  Options options;
  options.timeout = seconds(timeout, "timeout");
  options.gpu = gpu_options(max_blocks, priority, {});
  if (!reproducible.is_none()) options.reproducible = flag(reproducible, "reproducible");
  return options;
}

std::shared_ptr<Communicator> connect(int rank, int world, const PythonExchange& exchange, nb::handle timeout,
                                      nb::handle reproducible, const std::string& transport,
                                      const std::shared_ptr<MpiJob>& mpi, nb::handle encrypt,
                                      nb::handle max_blocks, nb::handle priority) {
  const Options options = options_of(timeout, reproducible, max_blocks, priority);
  std::optional<bool> encrypts;
  if (!encrypt.is_none()) encrypts = flag(encrypt, "encrypt");
  const Exchange call = [&](const std::string& blob) {
    const WithGil locked;
    return or_stay([&] {
      std::vector<std::string> blobs;
      const nb::object answer = exchange(nb::bytes(blob.data(), blob.size()));
      for (nb::handle one : answer) {
        const auto bytes = nb::cast<nb::bytes>(one);
        blobs.emplace_back(bytes.c_str(), bytes.size());
      }
      return blobs;
    });
  };
  const WithoutGil unlocked;
  auto communicator =
      std::allocate_shared<Communicator>(EndsUnlocked<Communicator>(),
                                         connect_transport(rank, world, call, transport, mpi, encrypts,
                                                           options.tuned ? options.tuned->digest : 0),
                                         options);
  communicator->settle();
  return communicator;
}

std::vector<std::shared_ptr<Communicator>> local_group(int world, nb::handle timeout, nb::handle reproducible,
                                                       nb::handle max_blocks, nb::handle priority) {
  const Options options = options_of(timeout, reproducible, max_blocks, priority);
  std::vector<std::shared_ptr<Communicator>> group;
  for (auto& transport : LocalTransport::group(world)) {
    group.push_back(
        std::allocate_shared<Communicator>(EndsUnlocked<Communicator>(), std::move(transport), options));
    group.back()->settle();
  }
  return group;
}

}  // namespace

void bind_connect(nb::module_& m) {
  m.def(
      "check_gpu_options",
      [](nb::handle max_blocks, nb::handle priority) { gpu_options(max_blocks, priority, {}); },
      "max_blocks"_a.none(), "priority"_a.none(), "Raises unless a group can have them.");
  m.def("connect", connect, "rank"_a, "world"_a, "exchange"_a, "timeout"_a.none(), "reproducible"_a.none(),
        "transport"_a = "", "mpi"_a.none() = nb::none(), "encrypt"_a.none() = nb::none(),
        "max_blocks"_a.none() = nb::none(), "priority"_a.none() = nb::none(),
        "Connects this rank to the others, which it reaches through the exchange.");
  m.def("local_group", local_group, "world"_a, "timeout"_a.none(), "reproducible"_a.none(),
        "max_blocks"_a.none() = nb::none(), "priority"_a.none() = nb::none(),
        "Returns the communicators of a group of ranks within this process.");
}

}  // namespace ringreduce
