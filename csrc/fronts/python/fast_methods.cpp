// The collectives that programs call with small arrays, without a Python frame. A FastMethod stands in the
// class in place of a method. It makes the usual call itself: blocking, with contiguous arrays in CPU memory.
// It hands every other call on to the method.
#include <nanobind/stl/string.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <new>
#include <optional>
#include <string>

#include "engine/communicator/communicator.h"
#include "fronts/python/arguments.h"
#include "fronts/python/arrays.h"
#include "fronts/python/bindings.h"
#include "fronts/python/errors.h"
#include "fronts/python/held.h"
#include "fronts/python/schedule_caster.h"
#include "fronts/python/values.h"
#include "schedule/catalogue.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

enum Argument : std::uint8_t { x, op, root, out, algorithm, timeout, argument_count };
constexpr const char* names[argument_count] = {"x", "op", "root", "out", "algorithm", "timeout"};
using Arguments = std::array<PyObject*, argument_count>;  // null: not given

struct Shape {
  Collective collective;
  Argument second;  // what may follow x without its name; x if nothing may
  bool has_out;     // there is an argument `out`
  bool in_place;    // without `out`, the result goes to x; otherwise the method makes a new array
};

constexpr Shape shapes[] = {
    {Collective::all_reduce, op, true, true},
    {Collective::reduce_scatter, op, true, false},
    {Collective::all_gather, x, true, false},
    {Collective::broadcast, root, false, true},
};

struct FastMethod {
  PyObject head;
  vectorcallfunc called;
  PyObject* dict;
  PyObject* method;
  const Shape* shape;
};

FastMethod& of(PyObject* self) {
  return *reinterpret_cast<FastMethod*>(self);
}

PyObject* interned(const char* name) {
  PyObject* const found = PyUnicode_InternFromString(name);
  if (!found) throw nb::python_error();
  return found;
}

// False if an argument is not among those of the fast path. `given`: the communicator, x and so on.
bool sort_arguments(const Shape& shape, PyObject* const* given, std::size_t count, PyObject* keywords,
                    Arguments& sorted) {
  static const std::array<PyObject*, argument_count> known = [] {
    Arguments all{};
    for (int i = 0; i < argument_count; ++i) all[i] = interned(names[i]);
    return all;
  }();
  if (count < 2 || count > (shape.second == x ? 2 : 3)) return false;
  sorted[x] = given[1];
  if (count == 3) sorted[shape.second] = given[2];
  const Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GetItem(keywords, i);
    int found = op;
    while (found < argument_count && known[found] != name) ++found;
    const bool taken = found == out ? shape.has_out : found >= algorithm || found == shape.second;
    if (found == argument_count || !taken || sorted[found]) return false;
    sorted[found] = given[count + static_cast<std::size_t>(i)];
  }
  return true;
}

// False if the call is not one of the fast path.
bool describe(const Communicator& comm, const Shape& shape, const Arguments& given, Call& call, Held& held) {
  const bool elsewhere = given[out] && given[out] != Py_None;
  if (!elsewhere && !shape.in_place) return false;
  if (given[op] && !PyUnicode_Check(given[op])) return false;  // an operator of the caller's own
  int chosen = automatic;
  if (given[algorithm]) {
    if (!PyUnicode_Check(given[algorithm])) return false;
    const std::string_view name = text(given[algorithm], "algorithm");
    const Entry* const entry = find_algorithm(shape.collective, name);
    if ((!entry && name != "auto") || name == "synthesised") return false;  // whose first call measures links
    if (entry) chosen = static_cast<int>(entry - catalogue().data());
  }
  const int from = given[root] ? root_of(comm, given[root]) : 0;
  Extents unused_input, unused_output;
  call = make_call(comm, shape.collective, given[x], elsewhere ? given[out] : given[x], from, nb::none(),
                   nb::none(), unused_input, unused_output, held);
  if (given[op]) set_op(call, given[op], nb::none());
  if (given[timeout]) call.timeout = seconds(given[timeout], "timeout");
  call.algorithm = chosen;
  return call.device == on_host;
}

// To release Python's lock takes as long as a message between two cores.
class ReleaseLock final : public BeforeWaiting {
 public:
  void operator()() override { released_.emplace(); }

 private:
  std::optional<WithoutGil> released_;
};

// False if the method must make the call.
bool run(const Shape& shape, PyObject* const* given, std::size_t count, PyObject* keywords,
         PyObject*& result) {
  static PyObject* const engine = interned("_c");
  Arguments sorted{};
  if (!sort_arguments(shape, given, count, keywords, sorted)) return false;
  const nb::object owner = nb::steal(PyObject_GetAttr(given[0], engine));
  Communicator* comm = nullptr;
  if (!owner.is_valid() || !nb::try_cast(owner, comm)) {
    PyErr_Clear();
    return false;
  }
  Call call;
  Held held;
  try {
    if (!describe(*comm, shape, sorted, call, held)) return false;
  } catch (const nb::python_error& raised) {
    if (!raised.matches(PyExc_BufferError)) throw;
    return false;  // an array is not contiguous
  }
  {
    ReleaseLock before;
    comm->run(call, before);
  }
  result = sorted[out] && sorted[out] != Py_None ? sorted[out] : sorted[x];
  Py_INCREF(result);
  return true;
}

// Like run(), with exceptions as Python's: then the result is null.
bool run_or_raise(const Shape& shape, PyObject* const* given, std::size_t count, PyObject* keywords,
                  PyObject*& result) {
  try {
    return run(shape, given, count, keywords, result);
  } catch (nb::python_error& raised) {
    raised.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (...) {
    raise_in_python(std::current_exception());
  }
  return true;
}

// The method runs outside all handlers of exceptions, as Python may end this thread in it: see
// fronts/shared/thread_end.h.
PyObject* called(PyObject* self, PyObject* const* given, std::size_t flags, PyObject* keywords) {
  const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  PyObject* result = nullptr;
  if (run_or_raise(*of(self).shape, given, count, keywords, result)) return result;
  return PyObject_Vectorcall(of(self).method, given, count, keywords);
}

// --- the type ---------------------------------------------------------------------------------------------

int visit_all(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(of(self).dict);
  Py_VISIT(of(self).method);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(of(self).dict);
  Py_CLEAR(of(self).method);
  return 0;
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject* /*type*/) {
  if (!object || object == Py_None) {
    Py_INCREF(self);
    return self;
  }
  static PyObject* const method_type =
      nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  return PyObject_CallFunctionObjArgs(method_type, self, object, nullptr);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(FastMethod, called), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(FastMethod, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* make_type() {
  PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_all)},
                         {Py_tp_clear, reinterpret_cast<void*>(clear)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                         {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_members, members},
                         {Py_tp_getset, attributes},
                         {0, nullptr}};
  PyType_Spec spec{
      "ringreduce._engine.FastMethod", sizeof(FastMethod), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
      slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (!type) throw nb::python_error();
  return type;
}

nb::object fast_method(const std::string& collective, nb::handle method) {
  static PyObject* const type = make_type();
  const auto* const shape = std::find_if(std::begin(shapes), std::end(shapes), [&](const Shape& one) {
    return one.collective == collective_named(collective);
  });
  if (shape == std::end(shapes)) throw InvalidArgument("there is no fast path for " + collective);
  auto* const made = PyObject_GC_New(FastMethod, reinterpret_cast<PyTypeObject*>(type));
  if (!made) throw nb::python_error();
  made->called = called;
  made->dict = nullptr;
  made->method = nb::borrow(method).release().ptr();
  made->shape = shape;
  PyObject_GC_Track(made);
  nb::object result = nb::steal(reinterpret_cast<PyObject*>(made));
  nb::module_::import_("functools").attr("update_wrapper")(result, method);
  return result;
}

}  // namespace

void bind_fast_methods(nb::module_& m) {
  m.def("fast_method", fast_method, "collective"_a, "method"_a,
        "Returns what takes a method's place in its class, and makes the method's usual calls without it.");
}

}  // namespace ringreduce
