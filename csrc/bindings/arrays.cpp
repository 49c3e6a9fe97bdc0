#include "bindings/arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <numpy/arrayobject.h>

#include <optional>
#include <string>
#include <string_view>

#include "front/thread_end.h"
#include "transport/device/library.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

[[noreturn]] void refuse(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

[[noreturn]] void refuse_dtype(const char* argument, const std::string& name) {
  std::string text =
      std::string(argument) + " has dtype " + name + ", which is not supported; supported dtypes are ";
  for (const DTypeEntry& entry : dtype_entries) {
    if (&entry != dtype_entries) text += &entry == std::end(dtype_entries) - 1 ? " and " : ", ";
    text += entry.name;
  }
  refuse(PyExc_TypeError, text);
}

[[noreturn]] void refuse_layout(const char* argument) {
  refuse(PyExc_BufferError, std::string(argument) + " is not contiguous");
}

[[noreturn]] void refuse_layout_on_gpu(const char* argument) {
  refuse(PyExc_ValueError, std::string(argument) + " is in GPU memory and not contiguous");
}

[[noreturn]] void refuse_read_only(const char* argument) {
  refuse(PyExc_ValueError, std::string(argument) + " is read-only, but the result would be written to it");
}

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
  static std::pair<PyTypeObject*, std::optional<DType>> last;  // of ml_dtypes, whose types stay
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
  static PyObject* tensor = nullptr;
  if (!tensor) {
    const auto modules = nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules"));
    if (!modules.contains("torch")) return false;
    nb::object torch = modules["torch"];
    if (!nb::hasattr(torch, "Tensor")) return false;  // torch is being imported right now
    tensor = nb::object(torch.attr("Tensor")).release().ptr();
  }
  return PyObject_IsInstance(object.ptr(), tensor) == 1;
}

std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return std::nullopt;
  const std::size_t bytes = type.bits % 8 == 0 ? type.bits / 8 : 0;
  switch (static_cast<Code>(type.code)) {
    case Code::Float:
      return common_dtype(NumberKind::floating, bytes);
    case Code::Complex:
      return common_dtype(NumberKind::complex, bytes);
    case Code::Int:
      return common_dtype(NumberKind::signed_integer, bytes);
    case Code::UInt:
      return common_dtype(NumberKind::unsigned_integer, bytes);
    case Code::Bool:
      return common_dtype(NumberKind::boolean, bytes);
    case Code::Bfloat:
      return bytes == 2 ? std::optional(DType::bfloat16) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// DLPack's table of functions, from version 1.2 on, which a class of arrays offers as a capsule.
struct DlpackTable {
  std::uint32_t major, minor;
  DlpackTable* older;
  int (*unused[3])();
  int (*describe)(void* array, nb::dlpack::dltensor* description);
};

// Of torch.Tensor itself and of torch.nn.Parameter; null if this version of torch has none. Other subclasses
// may redefine everything.
const DlpackTable* table_of(nb::handle tensor) {
  static PyTypeObject* known[2] = {};
  static const DlpackTable* of_known = nullptr;
  PyTypeObject* const type = Py_TYPE(tensor.ptr());
  if (type == known[0] || type == known[1]) return of_known;
  if (known[0]) return nullptr;
  const nb::object torch = nb::module_::import_("torch");
  if (!nb::hasattr(torch, "nn")) return nullptr;  // torch is being imported right now
  const nb::object plain = torch.attr("Tensor"), parameter = torch.attr("nn").attr("Parameter");
  const nb::object capsule = nb::getattr(plain, "__dlpack_c_exchange_api__", nb::none());
  auto* found = static_cast<const DlpackTable*>(
      capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  while (found && found->major > 1) found = found->older;
  of_known = found && found->describe ? found : nullptr;
  known[1] = reinterpret_cast<PyTypeObject*>(nb::object(parameter).release().ptr());
  known[0] = reinterpret_cast<PyTypeObject*>(nb::object(plain).release().ptr());
  return table_of(tensor);
}

// Of a tensor in CPU memory, if the table can describe it. The other way takes a microsecond.
std::optional<ArrayView> view_by_table(nb::handle tensor) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  const DlpackTable* const table = table_of(tensor);
  if (!table) return std::nullopt;
  nb::dlpack::dltensor found{};
  if (table->describe(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = dtype_of(found.dtype);
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

void check_contiguous(const ArrayView& array, const std::vector<std::size_t>& shape,
                      const std::vector<std::int64_t>& strides, const char* argument) {
  auto expected = static_cast<std::int64_t>(size_of(array.dtype));
  for (std::size_t i = shape.size(); i-- > 0 && array.count > 0;) {
    if (shape[i] != 1 && strides[i] != expected) refuse_layout_on_gpu(argument);
    expected *= static_cast<std::int64_t>(shape[i]);
  }
}

// By version 3 of the CUDA array interface.
ArrayView view_on_device(const nb::dict& interface, const char* argument, bool writable) {
  const auto data = nb::cast<std::pair<std::uintptr_t, bool>>(interface["data"]);
  if (writable && data.second) refuse_read_only(argument);
  const auto typestr = nb::cast<std::string>(interface["typestr"]);
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(nb::str(typestr.c_str()).ptr(), &descr) != NPY_SUCCEED) throw nb::python_error();
  const nb::object owned = nb::steal(reinterpret_cast<PyObject*>(descr));
  const auto dtype = dtype_of(descr);
  if (!dtype || !PyArray_ISNBO(descr->byteorder)) refuse_dtype(argument, typestr);
  ArrayView found{reinterpret_cast<void*>(data.first), 1, *dtype, on_host};
  const auto shape = nb::cast<std::vector<std::size_t>>(interface["shape"]);
  for (std::size_t length : shape) found.count *= length;
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    check_contiguous(found, shape, nb::cast<std::vector<std::int64_t>>(interface["strides"]), argument);
  }
  const CudaLibrary& cuda = CudaLibrary::get();
  CudaLibrary::check(found.data ? cuda.device_of(&found.device, found.data)
                                : cuda.current_device(&found.device));
  return found;
}

bool is_on_gpu(const nb::ndarray<nb::ro>& array) {
  return array.device_type() == nb::device::cuda::value ||
         array.device_type() == nb::device::cuda_managed::value;
}

ArrayView view_other(nb::handle object, const char* argument, bool writable) {
  nb::ndarray<nb::ro> array;
  if (object.is_none() || !nb::try_cast(object, array)) {
    refuse(PyExc_TypeError, std::string(argument) +
                                " must be an array (NumPy, torch, DLPack or a buffer), not " +
                                nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__"))));
  }
  if (array.device_type() != nb::device::cpu::value && !is_on_gpu(array)) {
    refuse(PyExc_ValueError, std::string(argument) + " is neither in CPU memory nor in GPU memory");
  }
  nb::ndarray<> writable_array;
  if (writable && !nb::try_cast(object, writable_array)) refuse_read_only(argument);
  const auto dtype = dtype_of(array.dtype());
  if (!dtype)
    refuse_dtype(argument, "code " + std::to_string(array.dtype().code) + " of " +
                               std::to_string(array.dtype().bits) + " bits");
  const int device = is_on_gpu(array) ? array.device_id() : on_host;
  std::int64_t stride = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.size() != 0 && array.stride(i) != stride) {
      device == on_host ? refuse_layout(argument) : refuse_layout_on_gpu(argument);
    }
    stride *= static_cast<std::int64_t>(array.shape(i));
  }
  return {const_cast<void*>(array.data()), array.size(), *dtype, device};
}

}  // namespace

ArrayView view(nb::handle array, const char* argument, bool writable) {
  if (PyArray_Check(array.ptr())) {
    return view_numpy(reinterpret_cast<PyArrayObject*>(array.ptr()), argument, writable);
  }
  return or_stay([&] {
    if (is_tensor(array)) return view_tensor(array, argument);
    if (nb::hasattr(array, "__cuda_array_interface__")) {
      return view_on_device(nb::cast<nb::dict>(array.attr("__cuda_array_interface__")), argument, writable);
    }
    return view_other(array, argument, writable);
  });
}

ArrayView view_on_host(nb::handle array, const char* argument, bool writable) {
  const ArrayView found = view(array, argument, writable);
  if (found.device == on_host) return found;
  refuse(PyExc_ValueError, std::string(argument) + " is in GPU memory, not in CPU memory");
}

void import_numpy() {
  if (_import_array() < 0) throw nb::python_error();
}

}  // namespace ringreduce
