#include "fronts/python/arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "engine/device/device.h"
#include "fronts/python/foreign_arrays.h"
#include "fronts/python/held.h"
#include "fronts/shared/thread_end.h"

namespace nb = nanobind;

namespace ringreduce {
// An exporter's own words may be no text.
void refuse(PyObject* type, const std::string& text) {
  const nb::object words =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  PyErr_SetObject(type, words.ptr());
  throw nb::python_error();
}

void refuse_dtype(const char* argument, const std::string& name) {
  std::string text =
      std::string(argument) + " has dtype " + name + ", which is not supported; supported dtypes are ";
  for (const DTypeEntry& entry : dtype_entries) {
    if (&entry != dtype_entries) text += &entry == std::end(dtype_entries) - 1 ? " and " : ", ";
    text += entry.name;
  }
  refuse(PyExc_TypeError, text);
}

void refuse_layout(const char* argument) {
  refuse(PyExc_BufferError, std::string(argument) + " is not contiguous");
}

void refuse_read_only(const char* argument) {
  refuse(PyExc_ValueError, std::string(argument) + " is read-only, but the result would be written to it");
}

void refuse_without_memory(const char* argument) {
  refuse(PyExc_ValueError, std::string(argument) + " has no memory for its elements");
}

namespace {

// By NumPy's letter.
std::optional<NumberKind> kind_called(char letter) {
  switch (letter) {
    case 'f':
      return NumberKind::floating;
    case 'c':
      return NumberKind::complex;
    case 'i':
      return NumberKind::signed_integer;
    case 'u':
      return NumberKind::unsigned_integer;
    case 'b':
      return NumberKind::boolean;
    default:
      return std::nullopt;
  }
}

std::optional<DType> dtype_of(PyArray_Descr* descr) {
  const auto kind = kind_called(descr->kind);
  if (kind && !PyTypeNum_ISUSERDEF(descr->type_num)) {
    return common_dtype(*kind, static_cast<std::size_t>(PyDataType_ELSIZE(descr)));
  }
  thread_local std::pair<PyTypeObject*, std::optional<DType>> last;  // of ml_dtypes, whose types stay
  if (last.first != descr->typeobj) {
    const nb::handle type(reinterpret_cast<PyObject*>(descr->typeobj));
    const auto name = nb::cast<std::string>(type.attr("__name__"));
    last = {descr->typeobj, find_named<DType>(name, dtype_count)};
  }
  return last.second;
}

ArrayView view_numpy(PyArrayObject* array, const char* argument, bool writable) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  const auto dtype = dtype_of(descr);
  if (!dtype || !PyArray_ISNOTSWAPPED(array)) {
    refuse_dtype(argument, nb::cast<std::string>(nb::str(nb::handle(reinterpret_cast<PyObject*>(descr)))));
  }
  if (writable && !PyArray_ISWRITEABLE(array)) refuse_read_only(argument);
  if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISALIGNED(array)) refuse_layout(argument);
  return {PyArray_DATA(array), static_cast<std::size_t>(PyArray_SIZE(array)), *dtype};
}

// True if the object is a torch.Tensor. Only a caller that has imported torch can have one; the class is
// kept.
bool is_tensor(nb::handle object) {
  static std::atomic<PyObject*> known{nullptr};
  PyObject* tensor = known.load(std::memory_order_acquire);
  if (!tensor) {
    const auto modules = nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules"));
    if (!modules.contains("torch")) return false;
    nb::object torch = modules["torch"];
    if (!nb::hasattr(torch, "Tensor")) return false;  // torch is being imported right now
    tensor = nb::object(torch.attr("Tensor")).release().ptr();
    known.store(tensor, std::memory_order_release);
  }
  return PyObject_IsInstance(object.ptr(), tensor) == 1;
}

// DLPack's table of functions, from version 1.2 on, which a class of arrays offers as a capsule.
struct DlpackTable {
  std::uint32_t major, minor;
  DlpackTable* older;
  int (*unused[3])();
  int (*describe)(void* array, nb::dlpack::dltensor* description);
};

// torch.Tensor and torch.nn.Parameter, and their table; null if this version of torch has none.
struct TensorClasses {
  PyTypeObject *plain, *parameter;
  const DlpackTable* table;
};

// Null while torch is being imported.
const TensorClasses* find_classes() {
  const nb::object torch = nb::module_::import_("torch");
  if (!nb::hasattr(torch, "nn")) return nullptr;
  const nb::object plain = torch.attr("Tensor"), parameter = torch.attr("nn").attr("Parameter");
  const nb::object capsule = nb::getattr(plain, "__dlpack_c_exchange_api__", nb::none());
  auto* found = static_cast<const DlpackTable*>(
      capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  while (found && found->major > 1) found = found->older;
  const auto kept = [](nb::object type) { return reinterpret_cast<PyTypeObject*>(type.release().ptr()); };
  return new TensorClasses{kept(plain), kept(parameter), found && found->describe ? found : nullptr};
}

// Other subclasses may redefine everything.
const DlpackTable* table_of(nb::handle tensor) {
  static std::atomic<const TensorClasses*> known{nullptr};
  const TensorClasses* classes = known.load(std::memory_order_acquire);
  if (!classes) {
    classes = find_classes();
    if (!classes) return nullptr;
    known.store(classes, std::memory_order_release);  // two threads at once may both have found them
  }
  PyTypeObject* const type = Py_TYPE(tensor.ptr());
  return type == classes->plain || type == classes->parameter ? classes->table : nullptr;
}

PyObject* is_neg = nullptr;  // the method's name

// Of a tensor in CPU memory, if the table can describe it. The other way takes a microsecond.
std::optional<ArrayView> view_by_table(nb::handle tensor) {
  const DlpackTable* const table = table_of(tensor);
  if (!table) return std::nullopt;
  nb::dlpack::dltensor found{};
  if (table->describe(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = dtype_of_dlpack(found.dtype);
  const bool complex = found.dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Complex);
  if (found.device.device_type != nb::device::cpu::value || !dtype || complex) return std::nullopt;
  std::int64_t count = 1;
  for (int i = found.ndim - 1; i >= 0; --i) {
    if (found.shape[i] != 1 && found.strides && found.strides[i] != count) return std::nullopt;
    count *= found.shape[i];
  }
  const nb::object negated = nb::steal(PyObject_CallMethodObjArgs(tensor.ptr(), is_neg, nullptr));
  if (negated.ptr() != Py_False) return std::nullopt;
  return ArrayView{static_cast<std::byte*>(found.data) + found.byte_offset, static_cast<std::size_t>(count),
                   *dtype, on_host};
}

ArrayView view_tensor(nb::handle tensor, const char* argument) {
  if (const auto found = view_by_table(tensor)) return *found;
  const nb::object place = tensor.attr("device");
  const auto device = nb::cast<std::string>(place.attr("type"));
  if (device != "cpu" && device != "cuda") {
    refuse(PyExc_ValueError,
           std::string(argument) + " is on device '" + device + "', not in CPU or GPU memory");
  }
  const nb::object type = tensor.attr("dtype");
  const auto name =
      nb::cast<std::string>(nb::str(nb::handle(type)));  // nb::str of an object would only wrap it
  const auto dtype = find_named<DType>(std::string_view(name).substr(name.rfind('.') + 1), dtype_count);
  if (nb::cast<bool>(tensor.attr("is_sparse"))) {
    refuse(PyExc_TypeError, std::string(argument) + " is a sparse tensor, but only dense ones are supported");
  }
  if (!dtype) refuse_dtype(argument, name);
  // The memory of a lazily conjugated or negated view does not hold its values.
  const bool complex = *dtype == DType::complex64 || *dtype == DType::complex128;
  const bool lazy =
      nb::cast<bool>(tensor.attr("is_neg")()) || (complex && nb::cast<bool>(tensor.attr("is_conj")()));
  if (lazy || !nb::cast<bool>(tensor.attr("is_contiguous")())) refuse_layout(argument);
  return {reinterpret_cast<void*>(nb::cast<std::uintptr_t>(tensor.attr("data_ptr")())),
          nb::cast<std::size_t>(tensor.attr("numel")()), *dtype,
          device == "cuda" ? nb::cast<int>(place.attr("index")) : on_host};
}

ArrayView view_on_device(nb::handle object, const char* argument, bool writable) {
  ArrayView found = checked(described_by_cuda_interface(object, argument), argument, writable);
  found.device = Devices::get().device_of(found.data);
  return found;
}

}  // namespace

std::optional<DType> dtype_of_typestr(nb::handle typestr, const char* argument) {
  PyArray_Descr* descr = nullptr;
  if (!PyUnicode_Check(typestr.ptr()) || PyArray_DescrConverter(typestr.ptr(), &descr) != NPY_SUCCEED) {
    PyErr_Clear();
    refuse_dtype(argument, nb::cast<std::string>(nb::repr(typestr)));
  }
  const nb::object owned = nb::steal(reinterpret_cast<PyObject*>(descr));
  return PyArray_ISNBO(descr->byteorder) ? dtype_of(descr) : std::nullopt;
}

ArrayView view(nb::handle array, const char* argument, bool writable, Held& held) {
  if (held.in_background()) held.add(nb::borrow(array));
  if (PyArray_Check(array.ptr())) {
    return view_numpy(reinterpret_cast<PyArrayObject*>(array.ptr()), argument, writable);
  }
  return or_stay([&] {
    if (is_tensor(array)) {
      const ArrayView found = view_tensor(array, argument);
      if (found.count > 0 && !found.data) refuse_without_memory(argument);
      if (held.in_background()) held.add(array.attr("detach")());  // the program may give it other memory
      return found;
    }
    if (nb::hasattr(array, "__cuda_array_interface__")) return view_on_device(array, argument, writable);
    return checked(described(array, argument, writable, held), argument, writable);
  });
}

ArrayView view_on_host(nb::handle array, const char* argument, bool writable, Held& held) {
  const ArrayView found = view(array, argument, writable, held);
  if (found.device == on_host) return found;
  refuse(PyExc_ValueError, std::string(argument) + " is in GPU memory, not in CPU memory");
}

std::optional<Rows> rows_of(nb::handle object) {
  if (!object.is_valid() || !PyArray_Check(object.ptr())) return std::nullopt;
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  if (PyArray_NDIM(array) == 0 || PyArray_NDIM(array) > most_axes) return std::nullopt;
  return Rows{
      static_cast<std::size_t>(PyArray_DIM(array, 0)),
      static_cast<std::size_t>(PyArray_MultiplyList(PyArray_DIMS(array) + 1, PyArray_NDIM(array) - 1))};
}

nb::object new_rows(nb::handle like, std::size_t count) {
  auto* const array = reinterpret_cast<PyArrayObject*>(like.ptr());
  npy_intp shape[most_axes];
  std::copy_n(PyArray_DIMS(array), PyArray_NDIM(array), shape);
  shape[0] = static_cast<npy_intp>(count);
  PyArray_Descr* const dtype = PyArray_DESCR(array);
  Py_INCREF(reinterpret_cast<PyObject*>(dtype));  // PyArray_Empty takes a reference
  nb::object made = nb::steal(PyArray_Empty(PyArray_NDIM(array), shape, dtype, 0));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

void prepare_arrays() {
  is_neg = PyUnicode_InternFromString("is_neg");
  if (!is_neg || _import_array() < 0) throw nb::python_error();
}

}  // namespace ringreduce
