// The communicator as Python sees it: checks buffers, and releases the GIL while ranks communicate.
#include "engine/communicator/communicator.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "fronts/python/arguments.h"
#include "fronts/python/arrays.h"
#include "fronts/python/bindings.h"
#include "fronts/python/errors.h"
#include "fronts/python/held.h"
#include "fronts/python/schedule_caster.h"
#include "fronts/python/shared.h"
#include "fronts/python/values.h"
#include "schedule/check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

// The stream that the caller names, or the current one of the array's library. Python finds both.
std::optional<void*> chosen_stream(nb::handle array, int device, nb::handle stream) {
  const nb::object found = or_stay([&] {
    const nb::object streams = nb::module_::import_("ringreduce.communicator.arrays.streams");
    return stream.is_none() ? streams.attr("current")(array, device) : streams.attr("handle_of")(stream);
  });
  if (found.is_none()) return std::nullopt;
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(found));
}

void enqueue(Communicator& comm, const Call& call, nb::handle array, nb::handle stream) {
  const std::optional<void*> chosen = chosen_stream(array, call.device, stream);
  const WithoutGil unlocked;
  comm.device().enqueue(call, chosen);
}

std::shared_ptr<DeviceWork> enqueue_beside(Communicator& comm, const Call& call, nb::handle array,
                                           nb::handle stream, Held& held) {
  const std::optional<void*> chosen = chosen_stream(array, call.device, stream);
  Arrays arrays = held.give();
  const WithoutGil unlocked;
  return comm.device().enqueue_beside(call, chosen, std::move(arrays));
}

ArrayView view_on_gpu(nb::handle x) {
  Held held;
  const ArrayView array = view(x, "x", false, held);
  if (array.device == on_host) throw InvalidArgument("x is not in GPU memory");
  return array;
}

void register_memory(Communicator& comm, nb::handle x) {
  const ArrayView array = view_on_gpu(x);
  const WithoutGil unlocked;
  comm.device().register_memory(array.device, array.data, array.bytes());
}

void deregister_memory(Communicator& comm, nb::handle x) {
  const ArrayView array = view_on_gpu(x);
  const WithoutGil unlocked;
  comm.device().deregister_memory(array.device, array.data);
}

// Finds the library in pip's packages, which only Python can do. Called without the GIL.
std::string find_nccl() {
  const WithGil locked;
  try {
    return or_stay([] {
      return nb::cast<std::string>(nb::module_::import_("ringreduce.build.nccl_library").attr("find")());
    });
  } catch (const nb::python_error&) {
    return "";
  }
}

void refuse_stream(nb::handle stream) {
  if (!stream.is_none()) throw InvalidArgument("stream can only be used with arrays in GPU memory");
}

// Returns None, a Work or a DeviceWork.
nb::object collective(Communicator& comm, const std::string& name, nb::handle input, nb::handle output,
                      nb::handle op, nb::handle factor, nb::handle root, int algorithm, nb::handle timeout,
                      nb::handle input_counts, nb::handle output_counts, nb::handle async_op,
                      std::size_t slice_bytes, int lanes, nb::handle wire, nb::handle stream) {
  let_go();
  const bool background = flag(async_op, "async_op");
  Held held(background);
  Blocks blocks;
  const bool two = !output_counts.is_none();
  if (auto sent = counts(input_counts, two ? "send_counts" : "counts")) {
    blocks.input = extents_of(std::move(*sent));
  }
  if (auto received = counts(output_counts, "recv_counts")) blocks.output = extents_of(std::move(*received));
  Call call = make_call(comm, collective_named(name), input, output, root_of(comm, root), blocks, held);
  call.bucket = comm.bucket();
  if (!set_user_op(call, op, factor, held)) set_op(call, op, factor);
  count_in_elements(call, blocks);
  call.algorithm = algorithm;
  call.timeout = seconds(timeout, "timeout");
  call.slice_bytes = slice_bytes;
  call.lanes = lanes;
  call.wire = wire_named(wire);
  if (call.device != on_host) {
    const nb::handle array = input.is_none() ? output : input;
    if (background) return nb::cast(enqueue_beside(comm, call, array, stream, held));
    enqueue(comm, call, array, stream);
    return nb::none();
  }
  refuse_stream(stream);
  std::shared_ptr<Work> work;
  Arrays arrays = background ? held.give() : nullptr;
  {
    const WithoutGil unlocked;
    if (background) {
      work = comm.submit(call, std::move(arrays));
    } else {
      comm.run(call);
    }
  }
  return background ? nb::cast(work) : nb::none();
}

template <void (Communicator::*end)()>
void closed_by(Communicator& comm) {
  {
    const WithoutGil unlocked;
    (comm.*end)();
  }
  let_go();
}

int peer_from(const Communicator& comm, bool sends, nb::handle peer) {
  if (peer.is_none() && !sends) return any_source;
  if (peer.is_none()) {
    throw InvalidArgument("dest must be a rank from 0 to " + std::to_string(comm.size() - 1) + ", not None");
  }
  return static_cast<int>(
      whole(peer, sends ? "dest" : "source", 0, comm.size() - 1, sends ? "a rank" : "None or a rank"));
}

// Returns the other end's rank, or a Work if the transfer runs in the background.
nb::object transfer(Communicator& comm, bool sends, nb::handle x, nb::handle peer, nb::handle tag,
                    nb::handle timeout, nb::handle async_op) {
  let_go();
  const bool background = flag(async_op, "async_op");
  Held held(background);
  const ArrayView array = view_on_host(x, "x", !sends, held);
  const Transfer t{.sends = sends,
                   .peer = peer_from(comm, sends, peer),
                   .data = array.data,
                   .count = array.count,
                   .dtype = array.dtype,
                   .tag = static_cast<int>(whole(tag, "tag", INT32_MIN, INT32_MAX)),
                   .timeout = seconds(timeout, "timeout")};
  std::shared_ptr<Work> work;
  Arrays arrays = background ? held.give() : nullptr;
  int other = -1;
  {
    const WithoutGil unlocked;
    if (background) {
      work = comm.submit(t, std::move(arrays));
    } else {
      other = comm.transfer(t);
    }
  }
  return background ? nb::cast(work) : nb::cast(other);
}

// A message without a tag, which kernels or NCCL carry. Returns None or a DeviceWork.
nb::object exchange(Communicator& comm, bool sends, nb::handle x, nb::handle peer, nb::handle async_op,
                    nb::handle stream) {
  let_go();
  const bool background = flag(async_op, "async_op");
  Held held(background);
  const ArrayView array = view(x, "x", !sends, held);
  if (array.device == on_host)
    throw InvalidArgument("tag=None needs an array in GPU memory, and x is in CPU memory");
  const Transfer t{.sends = sends,
                   .peer = peer_from(comm, sends, peer),
                   .data = array.data,
                   .count = array.count,
                   .dtype = array.dtype};
  if (t.peer == any_source) {
    throw InvalidArgument("source must be a rank if tag is None: such messages come from one rank");
  }
  const std::optional<void*> chosen = chosen_stream(x, array.device, stream);
  if (!background) {
    const WithoutGil unlocked;
    comm.device().exchange(array.device, {&t, 1}, chosen);
    return nb::none();
  }
  std::shared_ptr<DeviceWork> work;
  Arrays arrays = held.give();
  {
    const WithoutGil unlocked;
    work = comm.device().exchange_beside(array.device, {&t, 1}, chosen, std::move(arrays));
  }
  return nb::cast(work);
}

// Copies between CPU and GPU memory, and waits for the stream.
void copy_between(Communicator& comm, nb::handle to, nb::handle source, nb::handle stream) {
  Held held;
  const ArrayView target = view(to, "x", true, held), from = view(source, "x", false, held);
  const bool outwards = from.device != on_host;
  const int device = outwards ? from.device : target.device;
  if (device == on_host) {  // CUDA's array interface describes pinned memory, too
    std::memcpy(target.data, from.data, from.bytes());
    return;
  }
  const std::optional<void*> given = chosen_stream(outwards ? source : to, device, stream);
  const WithoutGil unlocked;
  void* const chosen = given ? *given : comm.device_holdings().stream;
  Devices::get().copy(device, target.data, from.data, from.bytes(), chosen);
}

std::shared_ptr<Communicator> split(Communicator& comm, nb::handle color, nb::handle key,
                                    nb::handle max_blocks, nb::handle priority) {
  const auto number = [](nb::handle value, const char* argument, int least) {
    return static_cast<int>(whole(value, argument, least, INT32_MAX, "None or an integer"));
  };
  const int own_color = color.is_none() ? -1 : number(color, "color", 0);
  const int own_key = key.is_none() ? comm.rank() : number(key, "key", INT32_MIN);
  const GpuOptions gpu = gpu_options(max_blocks, priority, comm.options().gpu);
  const WithoutGil unlocked;
  auto made = comm.split(own_color, own_key, gpu);
  return made ? shared(std::move(made)) : nullptr;
}

std::tuple<std::string, std::size_t, std::string> explain(const Communicator& comm, nb::handle collective,
                                                          nb::handle nbytes, nb::handle wire, bool commutes) {
  const auto [choice, reason] =
      comm.explain(collective_named(std::string(text(collective, "collective"))),
                   static_cast<std::size_t>(whole(nbytes, "nbytes", 0)), wire_named(wire), commutes);
  return {std::string(choice.entry->name), choice.slice_bytes, reason};
}

std::tuple<std::string_view, std::size_t, int, int, double> synthesised(Communicator& comm,
                                                                        nb::handle nbytes) {
  const auto bytes = static_cast<std::size_t>(whole(nbytes, "nbytes", 0));
  const Way way = [&] {
    const WithoutGil unlocked;
    return comm.synthesised(bytes);
  }();
  return {way.algorithm, way.slice_bytes, way.lanes, way.forest, way.seconds};
}

}  // namespace

void bind_communicator(nb::module_& m) {
  prepare_arrays();
  bind_errors();
  const auto unlocked = nb::call_guard<WithoutGil>();

  nb::class_<Communicator>(m, "Communicator", "One rank's end of a group; see ringreduce.Communicator.")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def_prop_ro("transport", &Communicator::transport_name)
      .def_prop_ro("fabric", &Communicator::fabric)
      .def_prop_ro("closed", &Communicator::closed)
      .def_prop_ro("number", &Communicator::number, "By which fronts that are compiled separately find it.")
      .def("check", &Communicator::usable, "Raises the group's failure, or ClosedError if it was closed.")
      .def_prop_ro("reproducible", [](const Communicator& comm) { return comm.options().reproducible; })
      .def_prop_ro("footprint", &Communicator::footprint, "Bytes of memory that the communicator holds.")
      .def("collective", collective, "name"_a, "input"_a.none(), "output"_a.none(), "op"_a.none(),
           "factor"_a.none(), "root"_a.none(), "algorithm"_a, "timeout"_a.none(), "input_counts"_a.none(),
           "output_counts"_a.none(), "async_op"_a.none(), "slice_bytes"_a = 0, "lanes"_a = 0,
           "wire"_a = nb::none(), "stream"_a = nb::none())
      .def("transfer", transfer, "sends"_a, "x"_a.none(), "peer"_a.none(), "tag"_a.none(), "timeout"_a.none(),
           "async_op"_a.none())
      .def("exchange", exchange, "sends"_a, "x"_a.none(), "peer"_a.none(), "async_op"_a.none(),
           "stream"_a.none())
      .def("add_schedule",
           [](Communicator& comm, const std::string& name, nb::handle schedule, int heaviest_round,
              const std::string& order) {
             Schedule own = schedule_from_python(schedule);
             const WithoutGil unlocked;
             return comm.add_schedule(name, std::move(own), heaviest_round, order_named(order));
           })
      .def("explain", explain, "collective"_a.none(), "nbytes"_a.none(), "wire"_a = nb::none(),
           "commutes"_a = true)
      .def(
          "measure_links", [](Communicator& comm) { comm.measure_links(); }, unlocked)
      .def(
          "synthesise", [](Communicator& comm) { comm.synthesise(); }, unlocked)
      .def("synthesise_for",
           [](Communicator& comm, const Synthesis& made) {
             const WithoutGil unlocked;
             comm.synthesise(made.network());
           })
      .def_prop_ro("synthesis", &Communicator::synthesis, nb::rv_policy::copy)
      .def("synthesised", synthesised, "nbytes"_a)
      .def_prop_ro("links", [](const Communicator& comm) { return comm.links(); })
      .def_prop_ro("ring_order", &Communicator::ring_order)
      .def_prop_ro("machines", &Communicator::machines,
                   "The number of each rank's host; empty if all share one host.")
      .def(
          "prepare_device", [](Communicator& comm, int device) { comm.device().prepare(device); }, "device"_a,
          unlocked)
      .def("copy_between", copy_between, "to"_a, "source"_a, "stream"_a.none())
      .def("register_memory", register_memory, "x"_a.none())
      .def("deregister_memory", deregister_memory, "x"_a.none())
      .def_prop_ro(
          "device_stream",
          [](Communicator& comm) { return reinterpret_cast<std::uintptr_t>(comm.device_holdings().stream); })
      .def_prop_ro("device_footprint", [](Communicator& comm) { return comm.device_holdings().bytes; })
      .def_prop_ro(
          "was_direct", [](Communicator& comm) { return comm.device_holdings().was_direct; },
          "Whether kernels of the last collective on the GPU reached all ranks' arrays; for tests.")
      .def("statistics", &Communicator::statistics)
      .def("forget_longest_waits", &Communicator::forget_longest_waits)
      .def("set_bucket", &Communicator::set_bucket, "number"_a,
           "Sets the number of the bucket of gradients that the next calls are for; -1: none.")
      .def("split", split, "color"_a.none(), "key"_a.none(), "max_blocks"_a.none() = nb::none(),
           "priority"_a.none() = nb::none())
      .def(
          "shrink", [](Communicator& comm) { return shared(comm.shrink()); }, unlocked)
      .def("inherit", &Communicator::inherit, "parent"_a,
           "Takes over from the group that this one was made from what it still holds.")
      .def(
          "agree",
          [](Communicator& comm, bool yes, double timeout) {
            return comm.agree(
                yes, std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout)));
          },
          "yes"_a, "timeout"_a, unlocked, "Returns whether all ranks say yes. They all get the same answer.")
      .def("close", closed_by<&Communicator::close>)
      .def("leave", closed_by<&Communicator::leave>);

  if (const Devices* const devices = Devices::found()) devices->find_nccl_by(find_nccl);
  m.def("algorithm_handle", [](const std::string& collective, nb::handle algorithm) {
    const std::string name(text(algorithm, "algorithm"));
    if (name == "nccl") return by_nccl;
    const Entry* entry = find_algorithm(collective_named(collective), name);
    return entry ? static_cast<int>(entry - catalogue().data()) : -1;
  });
}

}  // namespace ringreduce
