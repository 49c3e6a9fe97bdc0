// The statistics of calls, and what other processes publish of theirs, for ringreduce/diagnosis.
#include <fcntl.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "engine/accounting/published_state.h"
#include "engine/communicator/communicator.h"
#include "engine/planning/description.h"
#include "fronts/python/bindings.h"
#include "transport/interface/descriptor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

template <std::size_t room>
std::string text_of(const char (&from)[room]) {
  return {from, strnlen(from, room)};
}

double in_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

nb::object wait_of(const PublishedWait& wait) {
  const std::int64_t seen = wait.seen.load(std::memory_order_acquire);
  if (seen == 0) return nb::none();
  nb::dict found;
  found["peer"] = wait.peer.load(std::memory_order_relaxed);
  found["since"] = in_seconds(wait.since.load(std::memory_order_relaxed));
  found["seen"] = in_seconds(seen);
  found["what"] = text_of(wait.what);
  return found;
}

const char* state_in_words(PublishedState::State state) {
  constexpr const char* names[] = {"unused", "open", "failed", "closed"};
  return static_cast<std::uint32_t>(state) < std::size(names) ? names[static_cast<int>(state)] : "unknown";
}

// The calls on record that are not being overwritten, oldest first.
nb::list calls_of(const PublishedState& published, std::uint64_t begun) {
  nb::list calls;
  const std::uint64_t first = begun < PublishedState::depth ? 1 : begun - PublishedState::depth + 2;
  for (std::uint64_t number = first; number <= begun; ++number) {
    const Record record = published.records[number % PublishedState::depth];
    if (record.sequence == number) calls.append(nb::make_tuple(number, in_words(record)));
  }
  return calls;
}

nb::dict described(const PublishedState& published) {
  nb::dict found;
  nb::list members, hosts;
  const int named = std::min(published.member_count, PublishedState::most_members);
  for (int r = 0; r < named; ++r) {
    members.append(published.members[r]);
    hosts.append(published.hosts[r]);
  }
  const std::uint64_t begun = published.begun.load(std::memory_order_acquire);
  found["state"] = state_in_words(published.state.load(std::memory_order_acquire));
  found["rank"] = published.rank;
  found["world"] = published.world;
  found["group"] = published.group;
  found["order"] = published.order;
  found["transport"] = text_of(published.transport);
  found["members"] = members;
  found["hosts"] = hosts;
  found["begun"] = begun;
  found["ended"] = published.ended.load(std::memory_order_relaxed);
  found["queued"] = static_cast<std::int64_t>(published.submitted.load(std::memory_order_relaxed) -
                                              published.finished.load(std::memory_order_relaxed));
  found["calls"] = calls_of(published, begun);
  found["wait"] = wait_of(published.collective);
  found["message"] = wait_of(published.message);
  found["problem"] = text_of(published.problem);
  return found;
}

// (the process's own number, its groups); a file that is something else gives (0, []).
nb::tuple published_states(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto read_at = [&](std::size_t at, void* to, std::size_t bytes) {
    return pread(file.get(), to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
  };
  PublishedHead head{};
  nb::list all;
  if (file.get() < 0 || !read_at(0, &head, sizeof head) || text_of(head.magic) != published_magic ||
      head.bytes != published_page || head.states > 1024) {
    return nb::make_tuple(0, all);
  }
  const auto published = std::make_unique<PublishedState>();
  for (std::size_t i = 1; i <= head.states; ++i) {
    if (!read_at(i * published_page, static_cast<void*>(published.get()), sizeof *published)) break;
    if (published->state.load() != PublishedState::State::unused) all.append(described(*published));
  }
  return nb::make_tuple(head.pid, all);
}

}  // namespace

void bind_account(nb::module_& m) {
  using Calls = Statistics::Calls;
  using Waits = Statistics::Waits;
  nb::class_<Calls>(m, "CallCounts", "Calls of one collective by one algorithm.")
      .def_ro("collective", &Calls::collective)
      .def_ro("algorithm", &Calls::algorithm)
      .def_ro("calls", &Calls::calls)
      .def_ro("bytes", &Calls::bytes)
      .def_ro("waited", &Calls::waited);
  nb::class_<Waits>(m, "Waits", "The waits for one rank.")
      .def_ro("count", &Waits::count)
      .def_ro("total", &Waits::total)
      .def_ro("longest", &Waits::longest)
      .def_ro("longest_in", &Waits::longest_in);
  nb::class_<Statistics>(m, "Statistics", "The statistics of a rank's calls in a group.")
      .def_ro("group", &Statistics::group)
      .def_ro("rank", &Statistics::rank)
      .def_ro("world", &Statistics::world)
      .def_ro("transport", &Statistics::transport)
      .def_ro("members", &Statistics::members)
      .def_ro("closed", &Statistics::closed)
      .def_ro("calls", &Statistics::calls)
      .def_ro("waits", &Statistics::waits, "By rank; the last: for no rank in particular.")
      .def_ro("counts", &Statistics::counts, "What the transport counts.");
  m.def("all_statistics", &Communicator::all_statistics, "Of all groups of this process.");
  m.def(
      "published_states", published_states, "path"_a,
      "Returns the number of the process that publishes its groups in this memory, and the groups; 0 if the "
      "file is something else.");
  m.def("published_name", [] { return published_name; }, "Returns the name of that memory.");
}

}  // namespace ringreduce
