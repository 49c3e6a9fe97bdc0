// The parts shared by libraries that a framework loads into a Python process, and that find Python only at
// run time.
#pragma once

#include "fronts/shared/thread_end.h"

// Of Python's stable ABI. They are found in the process, so such a library needs no headers of Python.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int);
void PyErr_Fetch(void** type, void** value, void** trace);
void PyErr_Restore(void* type, void* value, void* trace);
int Py_AddPendingCall(int (*function)(void*), void* argument);
void PyErr_Clear();
void* PyEval_GetFrame();
void* PyFrame_GetCode(void* frame);
void* PyObject_GetAttrString(void* object, const char* name);
int PyUnicode_CompareWithASCIIString(void* text, const char* other);
void Py_DecRef(void* object);
}

namespace ringreduce {

// An exception that a signal's handler has raised. Only the main thread runs handlers.
inline struct {
  void *type, *value, *trace;
} raised;

// A framework may be making the exception that says that its call has failed. An exception in its constructor
// would be an error of the framework.
inline bool in_constructor() {
  void* frame = PyEval_GetFrame();
  void* code = frame ? PyFrame_GetCode(frame) : nullptr;
  void* name = code ? PyObject_GetAttrString(code, "co_name") : nullptr;
  const bool found = name && PyUnicode_CompareWithASCIIString(name, "__init__") == 0;
  for (void* object : {name, code}) Py_DecRef(object);
  PyErr_Clear();
  return found;
}

inline int raise_again(void*) {
  if (in_constructor() && Py_AddPendingCall(raise_again, nullptr) == 0) return 0;
  PyErr_Restore(raised.type, raised.value, raised.trace);
  return -1;
}

// Takes the exception, and has Python raise it when the framework has returned: it neither expects nor keeps
// it.
inline void postpone_exception() {
  const int locked = or_stay(PyGILState_Ensure);
  void *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (type != nullptr) {
    raised = {type, value, trace};
    if (Py_AddPendingCall(raise_again, nullptr) != 0) raise_again(nullptr);
  }
  PyGILState_Release(locked);
}

}  // namespace ringreduce
