#include "fronts/tensorflow/interrupts.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <optional>

#include "fronts/shared/embedded.h"

extern "C" {
extern void* PyExc_KeyboardInterrupt;
void* PyImport_ImportModule(const char* name);
void* PyObject_CallMethod(void* object, const char* name, const char* format, ...);
void PyErr_SetNone(void* type);
}

namespace ringreduce {
namespace {

std::atomic<int> came{0};  // signals that Python does not know of yet

// The handler is ours only while a thread waits: the program may set another one at any time.
std::mutex handling;
int waiting = 0;  // threads for which the handler is ours
struct sigaction before;

void handle(int, siginfo_t*, void*) {
  came.fetch_add(1);
}

// Python's own handler only notes the signal.
void tell_python() {
  for (int count = came.exchange(0); count > 0; --count) {
    if (before.sa_flags & SA_SIGINFO) {
      before.sa_sigaction(SIGINT, nullptr, nullptr);
    } else {
      before.sa_handler(SIGINT);
    }
  }
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == handle;
}

// Returns whether there is a handler, which is then ours.
bool take_over() {
  const std::lock_guard lock(handling);
  struct sigaction now;
  sigaction(SIGINT, nullptr, &now);
  const bool by_default =
      !(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
  if (by_default) return false;
  if (!is_ours(now)) {
    before = now;
    struct sigaction ours = now;
    ours.sa_flags |= SA_SIGINFO;
    ours.sa_sigaction = handle;
    sigaction(SIGINT, &ours, nullptr);
  }
  ++waiting;
  return true;
}

void give_back() {
  const std::lock_guard lock(handling);
  struct sigaction now;
  sigaction(SIGINT, nullptr, &now);
  if (--waiting > 0) return;
  if (is_ours(now)) sigaction(SIGINT, &before, nullptr);
  tell_python();
}

// Raises KeyboardInterrupt when TensorFlow has returned, unless the program has a handler that may not raise,
// for example to stop after the next checkpoint.
bool raises() {
  const int locked = or_stay(PyGILState_Ensure);
  void* module = PyImport_ImportModule("signal");
  void* usual = module ? PyObject_GetAttrString(module, "default_int_handler") : nullptr;
  void* current = module ? PyObject_CallMethod(module, "getsignal", "i", SIGINT) : nullptr;
  const bool same = usual != nullptr && usual == current;
  for (void* object : {current, usual, module}) Py_DecRef(object);
  PyErr_Clear();
  if (same) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    postpone_exception();
  }
  PyGILState_Release(locked);
  return same;
}

struct Wait {
  bool watched = false;  // whether an Interruptible exists in this thread
  bool long_one = false;
  bool handled = false;
};
thread_local Wait wait;

InterruptCheck otherwise = nullptr;

bool check() {
  if (otherwise != nullptr && otherwise()) return true;
  if (!wait.watched) return false;
  if (!wait.long_one) {
    wait.long_one = true;
    wait.handled = take_over();
  }
  if (came.load() == 0) return false;
  if (raises()) {
    came = 0;
    return true;
  }
  tell_python();
  return false;
}

const bool installed = [] {
  otherwise = set_interrupt_check(check);
  return true;
}();

}  // namespace

Interruptible::Interruptible() {
  // In the main thread, Python runs its handlers during the wait.
  wait = {.watched = installed && gettid() != getpid()};
}

Interruptible::~Interruptible() {
  if (wait.handled) give_back();
  wait = {};
}

// Makes or ends one for this thread, a thread of Python's.
extern "C" void ringreduce_tensorflow_interruptible(bool on) {
  thread_local std::optional<Interruptible> here;
  if (on) {
    here.emplace();
  } else {
    here.reset();
  }
}

}  // namespace ringreduce
