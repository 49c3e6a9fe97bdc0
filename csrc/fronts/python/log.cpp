// The engine's side of the log, for ringreduce/log.py. Levels are those of Python's logging.
#include "transport/interface/log.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "fronts/python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

std::optional<int> from_environment() {
  log::follow_environment();
  const auto level = log::by_environment();
  return level ? std::optional<int>(static_cast<int>(*level)) : std::nullopt;
}

void say(int level, const std::string& who, const std::string& text) {
  log::say(static_cast<log::Level>(level), who, text);
}

}  // namespace

void bind_log(nb::module_& m) {
  nb::module_ part = m.def_submodule("log", "The engine's log: its level, and where its lines go.");
  part.def("from_environment", from_environment,
           "Sends lines from the level in RINGREDUCE_LOG on to stderr, and returns that level; None if it is "
           "not set.");
  part.def("to_stderr", [](int level) { log::send_to_stderr(static_cast<log::Level>(level)); }, "level"_a);
  part.def(
      "to_pipe", [](int level, int pipe) { log::send_to_pipe(static_cast<log::Level>(level), pipe); },
      "level"_a, "pipe"_a,
      "Sends lines to a pipe, each as a record: the level in two digits, the rank's name, a newline, the "
      "text, a zero byte.");
  part.def("write_to_stderr", log::write_to_stderr, "text"_a,
           "Writes in one piece, without the lock of sys.stderr, if the process was started with a stderr.");
  if (nb::module_::import_("sys").attr("__stderr__").is_none()) log::forget_stderr();
  part.def("says", [](int level) { return log::says(static_cast<log::Level>(level)); }, "level"_a);
  part.def("say", say, "level"_a, "who"_a, "text"_a);
}

}  // namespace ringreduce
