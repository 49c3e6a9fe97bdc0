// A signal that makes another thread act, whatever the main thread does: Python's own handlers run only when
// that thread returns to the interpreter.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "fronts/python/bindings.h"
#include "transport/interface/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

constexpr int most_signals = 65;

struct Bell {
  std::atomic<int> pipe{-1};
  std::atomic<pid_t> owner{0};
  struct sigaction before{};
};
std::array<Bell, most_signals> bells;

// The handler that was there before is called, too. A child of a fork does not ring its parent's bell.
void ring(int number, siginfo_t* info, void* context) {
  const int problem = errno;
  const Bell& bell = bells[static_cast<std::size_t>(number)];
  if (bell.owner.load() == getpid()) {
    const auto mark = static_cast<std::uint8_t>(number);
    [[maybe_unused]] const auto written = write(bell.pipe.load(), &mark, 1);
  }
  if (bell.before.sa_flags & SA_SIGINFO) {
    bell.before.sa_sigaction(number, info, context);
  } else if (bell.before.sa_handler != SIG_DFL && bell.before.sa_handler != SIG_IGN) {
    bell.before.sa_handler(number);
  }
  errno = problem;
}

void write_on_signal(int number, int pipe) {
  if (number < 1 || number >= most_signals) throw InvalidArgument("signum must be the number of a signal");
  Bell& bell = bells[static_cast<std::size_t>(number)];
  bell.pipe = pipe;
  bell.owner = getpid();
  struct sigaction now{};
  if (sigaction(number, nullptr, &now) != 0) throw InvalidArgument("signum must be the number of a signal");
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == ring) return;
  bell.before = now;
  struct sigaction ours{};
  ours.sa_sigaction = ring;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  if (sigaction(number, &ours, nullptr) != 0) throw InvalidArgument("signum cannot be handled");
}

}  // namespace

void bind_signals(nb::module_& m) {
  m.def("write_on_signal", write_on_signal, "signum"_a, "pipe"_a,
        "From now on, writes a byte to a pipe when this process gets the signal, and then calls the handler "
        "that was "
        "there before.");
}

}  // namespace ringreduce
