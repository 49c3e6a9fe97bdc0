// The statistics of calls, and what other processes publish of theirs, for ringreduce/diagnosis.
#include <fcntl.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "engine/accounting/notice.h"
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

nb::object wait_of(const WaitShown& wait) {
  const std::int64_t seen = wait.seen.load(std::memory_order_acquire);
  if (seen == 0) return nb::none();
  nb::dict found;
  found["peer"] = wait.peer.load(std::memory_order_relaxed);
  found["since"] = in_seconds(wait.since.load(std::memory_order_relaxed));
  found["seen"] = in_seconds(seen);
  found["what"] = text_of(wait.what);
  return found;
}

const char* state_in_words(Notice::State state) {
  constexpr const char* names[] = {"unused", "open", "failed", "closed"};
  return static_cast<std::uint32_t>(state) < std::size(names) ? names[static_cast<int>(state)] : "unknown";
}

// The calls on record that are not being overwritten, oldest first.
nb::list calls_of(const Notice& notice, std::uint64_t begun) {
  nb::list calls;
  const std::uint64_t first = begun < Notice::depth ? 1 : begun - Notice::depth + 2;
  for (std::uint64_t number = first; number <= begun; ++number) {
    const Record record = notice.records[number % Notice::depth];
    if (record.sequence == number) calls.append(nb::make_tuple(number, in_words(record)));
  }
  return calls;
}

nb::dict described(const Notice& notice) {
  nb::dict found;
  nb::list members, hosts;
  const int named = std::min(notice.member_count, Notice::most_members);
  for (int r = 0; r < named; ++r) {
    members.append(notice.members[r]);
    hosts.append(notice.hosts[r]);
  }
  const std::uint64_t begun = notice.begun.load(std::memory_order_acquire);
  found["state"] = state_in_words(notice.state.load(std::memory_order_acquire));
  found["rank"] = notice.rank;
  found["world"] = notice.world;
  found["group"] = notice.group;
  found["order"] = notice.order;
  found["transport"] = text_of(notice.transport);
  found["members"] = members;
  found["hosts"] = hosts;
  found["begun"] = begun;
  found["ended"] = notice.ended.load(std::memory_order_relaxed);
  found["queued"] = static_cast<std::int64_t>(notice.submitted.load(std::memory_order_relaxed) -
                                              notice.finished.load(std::memory_order_relaxed));
  found["calls"] = calls_of(notice, begun);
  found["wait"] = wait_of(notice.collective);
  found["message"] = wait_of(notice.message);
  found["problem"] = text_of(notice.problem);
  return found;
}

// (the process's own number, its groups); a file that is something else gives (0, []).
nb::tuple notices(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto read_at = [&](std::size_t at, void* to, std::size_t bytes) {
    return pread(file.get(), to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
  };
  NoticeHead head{};
  nb::list all;
  if (file.get() < 0 || !read_at(0, &head, sizeof head) || text_of(head.magic) != notices_magic ||
      head.bytes != notice_page || head.notices > 1024) {
    return nb::make_tuple(0, all);
  }
  const auto notice = std::make_unique<Notice>();
  for (std::size_t i = 1; i <= head.notices; ++i) {
    if (!read_at(i * notice_page, static_cast<void*>(notice.get()), sizeof *notice)) break;
    if (notice->state.load() != Notice::State::unused) all.append(described(*notice));
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
      .def_ro("waits", &Statistics::waits, "By rank; the last: for no rank in particular.");
  m.def("all_statistics", &Communicator::all_statistics, "Of all groups of this process.");
  m.def("notices", notices, "path"_a,
        "Returns the number of the process that shows its groups in this memory, and the groups; 0 if the "
        "file is something else.");
  m.def("notices_name", [] { return notices_name; }, "Returns the name of that memory.");
}

}  // namespace ringreduce
