// The collectives that programs call with small arrays, without a Python frame. A FastMethod stands in the
// class in place of a method. It makes the usual call itself: blocking, with contiguous arrays in CPU memory.
// It hands every other call on to the method.
#include <nanobind/stl/string.h>
#include <structmember.h>

#include <cstddef>
#include <new>
#include <optional>
#include <string>

#include "engine/communicator/communicator.h"
#include "fronts/python/bindings.h"
#include "fronts/python/errors.h"
#include "fronts/python/fast_calls.h"
#include "fronts/python/schedule_caster.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

struct FastMethod {
  PyObject head;
  vectorcallfunc called;
  PyObject* dict;
  PyObject* method;
  Collective collective;
  std::uint32_t taken;  // see usual_arguments()
};

FastMethod& of(PyObject* self) {
  return *reinterpret_cast<FastMethod*>(self);
}

// Made when the module is initialised. A local static's initialiser may let other threads of Python run, and
// these would wait for it without letting the first one continue.
PyObject* engine_name = nullptr;  // of the attribute
PyObject* method_type = nullptr;
PyTypeObject* fast_method_type = nullptr;

// To release Python's lock takes as long as a message between two cores.
class ReleaseLock final : public BeforeWaiting {
 public:
  void operator()() override { released_.emplace(); }

 private:
  std::optional<WithoutGil> released_;
};

// False if the method must make the call.
bool run(const FastMethod& method, PyObject* const* given, std::size_t count, PyObject* keywords,
         PyObject*& result) {
  if (count == 0) return false;
  const nb::object owner = nb::steal(PyObject_GetAttr(given[0], engine_name));
  Communicator* comm = nullptr;
  if (!owner.is_valid() || !nb::try_cast(owner, comm)) {
    PyErr_Clear();
    return false;
  }
  UsualCall read;
  try {
    if (!read_usual_call(*comm, method.collective, method.taken, given + 1, count - 1, keywords, read))
      return false;
  } catch (const nb::python_error& raised) {
    if (!raised.matches(PyExc_BufferError)) throw;
    return false;  // an array is not contiguous
  }
  {
    ReleaseLock before;
    comm->run(read.call, before);
  }
  result = read.result;
  Py_INCREF(result);
  return true;
}

// Like run(), with exceptions as Python's: then the result is null.
bool run_or_raise(const FastMethod& method, PyObject* const* given, std::size_t count, PyObject* keywords,
                  PyObject*& result) {
  try {
    return run(method, given, count, keywords, result);
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
  if (run_or_raise(of(self), given, count, keywords, result)) return result;
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

PyTypeObject* make_type() {
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
  return reinterpret_cast<PyTypeObject*>(type);
}

nb::object fast_method(const std::string& collective, nb::handle method) {
  auto* const made = PyObject_GC_New(FastMethod, fast_method_type);
  if (!made) throw nb::python_error();
  made->called = called;
  made->dict = nullptr;
  made->method = nb::borrow(method).release().ptr();
  made->collective = collective_named(collective);
  made->taken = usual_arguments(made->collective);
  PyObject_GC_Track(made);
  nb::object result = nb::steal(reinterpret_cast<PyObject*>(made));
  nb::module_::import_("functools").attr("update_wrapper")(result, method);
  return result;
}

}  // namespace

void bind_fast_methods(nb::module_& m) {
  engine_name = PyUnicode_InternFromString("_c");
  if (!engine_name) throw nb::python_error();
  method_type = nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  fast_method_type = make_type();
  name_arguments();
  m.def("fast_method", fast_method, "collective"_a, "method"_a,
        "Returns what takes a method's place in its class, and makes the method's usual calls without it.");
}

}  // namespace ringreduce
