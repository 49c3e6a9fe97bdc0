#include "fronts/python/values.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "fronts/python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

constexpr double longest = 1e9;                                // seconds: what can be added to a clock's time
constexpr std::int64_t most_elements = std::int64_t{1} << 47;  // in an array

[[noreturn]] void refuse(PyObject* type, const char* argument, const std::string& must_be,
                         const std::string& is) {
  PyErr_SetString(type, (std::string(argument) + " must be " + must_be + ", not " + is).c_str());
  throw nb::python_error();
}

std::string type_of(nb::handle value) {
  return nb::cast<std::string>(value.type().attr("__name__"));
}

[[noreturn]] void refuse_type(nb::handle value, const char* argument, const std::string& must_be) {
  refuse(PyExc_TypeError, argument, must_be, value.is_none() ? "None" : type_of(value));
}

[[noreturn]] void refuse_value(nb::handle value, const char* argument, const std::string& must_be) {
  const nb::object shown = nb::steal(PyObject_ASCII(value.ptr()));
  const char* is = shown.is_valid() ? PyUnicode_AsUTF8AndSize(shown.ptr(), nullptr) : nullptr;
  PyErr_Clear();
  refuse(PyExc_ValueError, argument, must_be, is ? is : type_of(value));
}

std::string within(const char* what, std::int64_t least, std::int64_t most) {
  if (most == unlimited) return what + std::string(" of at least ") + std::to_string(least);
  return what + std::string(" from ") + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

std::string_view text(nb::handle value, const char* argument) {
  if (!PyUnicode_Check(value.ptr())) refuse_type(value, argument, "a string");
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (!data) PyErr_Clear();
  const std::string_view found(data ? data : "", static_cast<std::size_t>(size));
  if (!data || found.find('\0') != std::string_view::npos) {
    refuse_value(value, argument, "a string without null characters and surrogates");
  }
  return found;
}

std::int64_t whole(nb::handle value, const char* argument, std::int64_t least, std::int64_t most,
                   const char* what) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    refuse_type(value, argument, within(what, least, most));
  }
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();  // an array with several elements
    refuse_type(value, argument, within(what, least, most));
  }
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || found < least || found > most)
    refuse_value(value, argument, within(what, least, most));
  return found;
}

double real(nb::handle value, const char* argument) {
  if (PyFloat_CheckExact(value.ptr())) return PyFloat_AsDouble(value.ptr());
  if (PyBool_Check(value.ptr())) refuse_type(value, argument, "a number");
  const double found = PyFloat_AsDouble(value.ptr());
  if (found == -1 && PyErr_Occurred()) {
    const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    too_large ? refuse_value(value, argument, "a number") : refuse_type(value, argument, "a number");
  }
  return found;
}

bool flag(nb::handle value, const char* argument) {
  if (!PyBool_Check(value.ptr())) refuse_type(value, argument, "True or False");
  return value.ptr() == Py_True;
}

Clock::duration seconds(nb::handle value, const char* argument, bool zero_too) {
  if (value.is_none()) return {};
  const double found = real(value, argument);
  if (zero_too && found == 0) return {};
  if (!(found > 0)) refuse_value(value, argument, zero_too ? "at least 0" : "positive");
  const auto duration = std::chrono::duration<double>(std::min(found, longest));
  return std::max(std::chrono::duration_cast<Clock::duration>(duration), Clock::duration(1));
}

std::optional<std::vector<std::size_t>> counts(nb::handle values, const char* argument) {
  if (values.is_none()) return std::nullopt;
  std::vector<std::size_t> found;
  const std::string each = std::string("each of ") + argument;
  for (const nb::handle value : nb::borrow<nb::iterable>(values)) {
    found.push_back(static_cast<std::size_t>(whole(value, each.c_str(), 0, most_elements)));
  }
  return found;
}

void bind_values(nb::module_& m) {
  nb::module_ sub = m.def_submodule("values", "Checks arguments. Errors name the argument.");
  sub.def("text", text, "value"_a.none(), "argument"_a);
  sub.def(
      "whole",
      [](nb::handle value, const char* argument, std::int64_t least, std::int64_t most, const char* what) {
        return whole(value, argument, least, most, what);
      },
      "value"_a.none(), "argument"_a, "least"_a = 0, "most"_a = unlimited, "what"_a = "an integer");
  sub.def("flag", flag, "value"_a.none(), "argument"_a);
  sub.def(
      "seconds",
      [](nb::handle value, const char* argument, bool zero_too) {
        return std::chrono::duration<double>(seconds(value, argument, zero_too)).count();
      },
      "value"_a.none(), "argument"_a, "zero_too"_a = false,
      "Returns the seconds, at most 1e9, or 0 for None.");
}

}  // namespace ringreduce
