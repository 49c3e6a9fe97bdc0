// Calls that run in the background, and the signals that interrupt a wait.
#include "engine/calls/work.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include "engine/calls/waiting.h"
#include "engine/device/device.h"
#include "fronts/python/bindings.h"
#include "fronts/python/errors.h"
#include "fronts/python/held.h"
#include "fronts/python/values.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

// An exception raised by a signal handler stays in the thread's state: see raise_in_python(). Python runs
// handlers in its main thread only. Other threads must not take the GIL, which is gone when Python ends.
bool check_signals() {
  if (gettid() != getpid()) return false;
  WithGil locked;
  return PyErr_CheckSignals() != 0;
}

void break_off_on_signals() {
  if (check_signals()) throw Interrupted("interrupted");
}

void let_wait(const DeviceWork& work, std::uintptr_t stream) {
  work.let_wait(reinterpret_cast<void*>(stream));
}

// True once the work has finished, false if the timeout passes first.
bool wait(Work& work, nb::handle timeout) {
  std::optional<std::chrono::nanoseconds> limit;
  if (!timeout.is_none()) limit = seconds(timeout, "timeout", true);
  bool over = false;
  {
    const WithoutGil unlocked;
    over = work.wait(limit, break_off_on_signals);
  }
  let_go();
  return over;
}

bool is_done(const Work& work) {
  const bool done = work.done();
  if (done) let_go();
  return done;
}

nb::object exception_of(const Work& work) {
  const auto problem = work.exception();
  if (!problem) return nb::none();
  raise_in_python(problem);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return nb::steal(value);
}

// Seconds on the clock of time.monotonic(), which is the steady clock.
double seconds_at(Work::Time time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

void bind_work(nb::module_& m) {
  set_interrupt_check(check_signals);
  const auto unlocked = nb::call_guard<WithoutGil>();

  nb::class_<Work>(m, "Work", "A call that runs in the progress thread.")
      .def("wait", wait, "timeout"_a = nb::none())
      .def("done", is_done)
      .def("exception", exception_of)
      .def("source", &Work::source)
      .def("began", [](const Work& work) { return seconds_at(work.began()); })
      .def("ended", [](const Work& work) { return seconds_at(work.ended()); });

  nb::class_<DeviceWork>(m, "GpuWork", "A call on the communicator's own GPU stream.")
      .def_prop_ro("device", &DeviceWork::device)
      .def("let_wait", let_wait, "stream"_a, unlocked)
      .def("done", &DeviceWork::done, unlocked);
}

}  // namespace ringreduce
