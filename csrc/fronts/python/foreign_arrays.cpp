#include "fronts/python/foreign_arrays.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "fronts/python/held.h"

namespace nb = nanobind;

namespace ringreduce {

void refuse_fields(const char* argument, const char* protocol, const std::string& problem) {
  refuse(PyExc_ValueError, std::string(argument) + " cannot be used: its " + protocol + " has " + problem);
}

namespace {

// --- the CUDA array interface ------------------------------------------------------------------------------

constexpr const char* cuda_interface = "__cuda_array_interface__";

nb::object field(const nb::dict& interface, const char* name) {
  return interface.contains(name) ? nb::object(interface[name]) : nb::none();
}

std::int64_t integer(nb::handle value, const char* argument, const char* what) {
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  const long long found = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred()) {
    PyErr_Clear();
    refuse_fields(argument, cuda_interface, std::string("a ") + what + " that is not made of integers");
  }
  return found;
}

std::vector<std::int64_t> integers(nb::handle values, const char* argument, const char* what) {
  std::vector<std::int64_t> found;
  if (!PyTuple_Check(values.ptr()) && !PyList_Check(values.ptr())) {
    refuse_fields(argument, cuda_interface, std::string("a ") + what + " that is not a tuple");
  }
  if (nb::len(values) > most_axes) refuse_fields(argument, cuda_interface, "too many dimensions");
  for (const nb::handle value : nb::borrow<nb::sequence>(values)) {
    found.push_back(integer(value, argument, what));
  }
  return found;
}

}  // namespace

// By version 3. CUDA knows the device, by the address.
Described described_by_cuda_interface(nb::handle object, const char* argument) {
  const nb::object given = object.attr(cuda_interface);
  if (!PyDict_Check(given.ptr())) {
    refuse(PyExc_ValueError,
           std::string(argument) + " cannot be used: its " + cuda_interface + " is no dict");
  }
  const auto interface = nb::borrow<nb::dict>(given);
  Described found;
  found.shape = integers(field(interface, "shape"), argument, "shape");
  const nb::object strides = field(interface, "strides"), data = field(interface, "data");
  if (!strides.is_none()) found.strides = integers(strides, argument, "strides");
  if (!PyTuple_Check(data.ptr()) || nb::len(data) != 2) {
    refuse_fields(argument, cuda_interface, "no data: (address, whether it is read-only)");
  }
  const nb::object address = nb::steal(PyNumber_Index(nb::object(data[0]).ptr()));
  found.data = address.is_valid() ? PyLong_AsVoidPtr(address.ptr()) : nullptr;
  if (PyErr_Occurred()) {
    PyErr_Clear();
    refuse_fields(argument, cuda_interface, "an address that is none");
  }
  found.read_only = PyObject_IsTrue(nb::object(data[1]).ptr()) != 0;
  PyErr_Clear();
  if (!field(interface, "mask").is_none()) {
    refuse_fields(argument, cuda_interface, "a mask, which is not supported");
  }
  const nb::object typestr = field(interface, "typestr");
  found.dtype = dtype_of_typestr(typestr, argument);
  found.type = nb::cast<std::string>(nb::str(typestr));
  if (!found.dtype) refuse_dtype(argument, found.type);
  found.stride_unit = static_cast<std::int64_t>(size_of(*found.dtype));
  found.device = 0;  // not known yet
  return found;
}

Described described(nb::handle object, const char* argument, bool writable, Held& held) {
  if (auto found = by_dlpack(object, argument, held)) return *found;
  if (auto found = by_buffer(object, argument, writable, held)) return *found;
  refuse(PyExc_TypeError, std::string(argument) +
                              " must be an array (NumPy, torch, DLPack or a buffer), not " +
                              nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__"))));
}

namespace {

constexpr std::int64_t most_bytes = std::int64_t{1} << 56;  // that have addresses

// Elements; raises if there are more bytes than memory has.
std::int64_t count_of(const Described& array, std::size_t element, const char* argument) {
  const auto is_negative = [](std::int64_t length) { return length < 0; };
  if (std::any_of(array.shape.begin(), array.shape.end(), is_negative)) {
    refuse(PyExc_ValueError, std::string(argument) + " cannot be used: it has a negative length");
  }
  auto bytes = static_cast<std::int64_t>(element);
  bool overflow = false;
  for (const std::int64_t length : array.shape) {
    overflow |= __builtin_mul_overflow(bytes, std::max(length, std::int64_t{1}), &bytes);
  }
  const auto data = reinterpret_cast<std::uintptr_t>(array.data);
  if (overflow || bytes > most_bytes || data + static_cast<std::uintptr_t>(bytes) < data) {
    refuse(PyExc_ValueError,
           std::string(argument) + " cannot be used: its shape needs more memory than there is");
  }
  const bool empty = std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end();
  return empty ? 0 : bytes / static_cast<std::int64_t>(element);
}

// As far as addresses go: only the exporter knows where the array ends.
bool is_within_memory(const Described& array) {
  std::int64_t reach = 0;
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    std::int64_t stride = (*array.strides)[i], most = 0;
    if (__builtin_mul_overflow(stride, array.shape[i] - 1, &most) || most == INT64_MIN ||
        __builtin_add_overflow(reach, most < 0 ? -most : most, &reach)) {
      return false;
    }
  }
  return reach <= most_bytes;
}

bool is_contiguous(const Described& array) {
  std::int64_t expected = array.stride_unit;
  for (std::size_t i = array.shape.size(); i-- > 0;) {
    if (array.shape[i] != 1 && (*array.strides)[i] != expected) return false;
    expected *= array.shape[i];
  }
  return true;
}

std::int64_t checked_count(const Described& array, const char* argument) {
  if (!array.dtype) refuse_dtype(argument, array.type);
  const std::int64_t count = count_of(array, size_of(*array.dtype), argument);
  if (array.strides && array.strides->size() != array.shape.size()) {
    refuse(PyExc_ValueError, std::string(argument) + " cannot be used: it has " +
                                 std::to_string(array.strides->size()) + " strides for " +
                                 std::to_string(array.shape.size()) + " dimensions");
  }
  if (count > 0 && !array.data) refuse_without_memory(argument);
  if (count > 0 && array.strides && !is_within_memory(array)) {
    refuse(PyExc_ValueError, std::string(argument) + " cannot be used: its strides reach beyond all memory");
  }
  return count;
}

}  // namespace

ArrayView checked(const Described& array, const char* argument, bool writable) {
  if (writable && array.read_only) refuse_read_only(argument);
  const std::int64_t count = checked_count(array, argument);
  const std::size_t element = size_of(*array.dtype);
  const bool complex = kind_of(*array.dtype) == NumberKind::complex;
  const bool aligned = reinterpret_cast<std::uintptr_t>(array.data) % (complex ? element / 2 : element) == 0;
  if (count > 0 && (!aligned || (array.strides && !is_contiguous(array)))) {
    if (array.device == on_host) refuse_layout(argument);
    refuse(PyExc_ValueError,
           std::string(argument) + " is in GPU memory and not " + (aligned ? "contiguous" : "aligned"));
  }
  return {array.data, static_cast<std::size_t>(count), *array.dtype, array.device};
}

nb::tuple shape_of(nb::handle object, const char* argument, bool writable) {
  Held held;
  const bool on_device = nb::hasattr(object, cuda_interface);
  const Described found =
      on_device ? described_by_cuda_interface(object, argument) : described(object, argument, writable, held);
  if (on_device) {
    checked(found, argument, writable);
  } else {
    checked_count(found, argument);
  }
  nb::list shape;
  for (const std::int64_t length : found.shape) shape.append(length);
  return nb::tuple(shape);
}

}  // namespace ringreduce
