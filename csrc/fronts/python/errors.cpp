// The engine's failures as the exceptions of ringreduce.errors.
#include "fronts/python/errors.h"

#include <nanobind/stl/string.h>

#include <cstring>

#include "fronts/shared/thread_end.h"
#include "transport/interface/errors.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

const char* class_for(Cause cause) {
  switch (cause) {
    case Cause::mismatch:
      return "MismatchError";
    case Cause::timeout:
      return "TimeoutError";
    case Cause::damaged:
      return "DamagedError";
    case Cause::op_failed:
      return "OpFailed";
    case Cause::minority:
      return "MinorityError";
    default:
      return "PeerLost";
  }
}

// A peer may have cut a name short within a character.
nb::object words_of(const Error& error) {
  const auto size = static_cast<Py_ssize_t>(std::strlen(error.what()));
  return nb::steal(PyUnicode_DecodeUTF8(error.what(), size, "replace"));
}

void raise(const char* name, const Error& error, int rank) {
  try {
    or_stay([&] {
      const nb::object type = nb::module_::import_("ringreduce.errors").attr(name);
      const nb::object words = words_of(error);
      const nb::object instance = rank >= 0 ? type(words, rank) : type(words);
      PyErr_SetObject(type.ptr(), instance.ptr());
    });
  } catch (nb::python_error& problem) {
    problem.restore();
  }
}

}  // namespace

void raise_in_python(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Failure& failure) {
    raise(class_for(failure.cause), failure, failure.culprit);
  } catch (const Interrupted& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyboardInterrupt, error.what());
  } catch (const Misplaced& error) {
    raise("Error", error, -1);
  } catch (const InvalidArgument& error) {
    PyErr_SetObject(PyExc_ValueError, words_of(error).ptr());
  } catch (const Closed& error) {
    raise("ClosedError", error, -1);
  } catch (const Error& error) {
    raise("Error", error, -1);
  }
}

void bind_errors() {
  nb::register_exception_translator(
      [](const std::exception_ptr& problem, void*) { raise_in_python(problem); });
}

}  // namespace ringreduce
