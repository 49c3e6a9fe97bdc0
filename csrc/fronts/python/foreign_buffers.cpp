// The buffer protocol.
#include <algorithm>
#include <bit>
#include <memory>
#include <string_view>

#include "fronts/python/foreign_arrays.h"
#include "fronts/python/held.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

constexpr const char* buffer_protocol = "buffer";

// By the letter of a format of the module `struct`. The buffer tells its size, which differs between native
// and standard formats.
std::optional<DType> dtype_of_format(std::string_view format, std::size_t size) {
  constexpr bool little = std::endian::native == std::endian::little;
  if (!format.empty() && std::string_view(little ? "@=<" : "@=>!").find(format[0]) != format.npos) {
    format.remove_prefix(1);
  } else if (!format.empty() && std::string_view("<>!").find(format[0]) != format.npos && size > 1) {
    return std::nullopt;  // swapped
  }
  if (format.size() == 2 && (format == "Ze" || format == "Zf" || format == "Zd")) {
    return common_dtype(NumberKind::complex, size);
  }
  if (format.size() != 1) return std::nullopt;
  const auto is_one_of = [&](std::string_view letters) { return letters.find(format[0]) != letters.npos; };
  if (is_one_of("bhilqnc")) return common_dtype(NumberKind::signed_integer, size);
  if (is_one_of("BHILQN")) return common_dtype(NumberKind::unsigned_integer, size);
  if (is_one_of("efd")) return common_dtype(NumberKind::floating, size);
  return format == "?" ? common_dtype(NumberKind::boolean, size) : std::nullopt;
}

// Its bytes, which the exporter also tells. Null shape and strides stand for one dimension without gaps.
void check_bytes(const Py_buffer& buffer, const std::vector<std::int64_t>& shape, const char* argument) {
  std::int64_t bytes = buffer.itemsize;
  bool overflow = bytes <= 0 || buffer.len < 0;
  for (const std::int64_t length : shape) overflow |= __builtin_mul_overflow(bytes, length, &bytes);
  if (overflow || bytes != buffer.len) {
    refuse_fields(argument, buffer_protocol,
                  std::to_string(buffer.len) + " bytes, which its shape and item size contradict");
  }
}

Described of_buffer(const Py_buffer& buffer, const char* argument) {
  Described found;
  if (!buffer.shape && buffer.ndim == 1 && buffer.itemsize > 0) {
    found.shape = {buffer.len / buffer.itemsize};
  } else {
    found.shape = lengths(argument, buffer_protocol, buffer.ndim, buffer.shape);
  }
  check_bytes(buffer, found.shape, argument);
  if (buffer.strides) found.strides.emplace(buffer.strides, buffer.strides + buffer.ndim);
  found.stride_unit = buffer.itemsize;
  const auto is_indirect = [](Py_ssize_t offset) { return offset >= 0; };
  if (buffer.suboffsets && std::any_of(buffer.suboffsets, buffer.suboffsets + buffer.ndim, is_indirect)) {
    refuse_fields(argument, buffer_protocol, "suboffsets, which are not supported");
  }
  found.data = buffer.buf;
  found.type = std::string("format '") + (buffer.format ? buffer.format : "B") + "'";
  found.dtype =
      dtype_of_format(buffer.format ? buffer.format : "B", static_cast<std::size_t>(buffer.itemsize));
  found.read_only = buffer.readonly != 0;
  return found;
}

// Null if it is no buffer.
std::shared_ptr<Py_buffer> buffer_of(nb::handle object, int flags) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), flags) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return {buffer.release(), [](Py_buffer* one) {
            PyBuffer_Release(one);
            delete one;
          }};
}

}  // namespace

std::optional<Described> by_buffer(nb::handle object, const char* argument, bool writable, Held& held) {
  if (!PyObject_CheckBuffer(object.ptr())) return std::nullopt;
  auto buffer = buffer_of(object, writable ? PyBUF_FULL : PyBUF_FULL_RO);
  if (!buffer && writable && buffer_of(object, PyBUF_FULL_RO)) refuse_read_only(argument);
  if (!buffer) return std::nullopt;
  Described found = of_buffer(*buffer, argument);
  // The exporter may move its memory once the buffer is released.
  auto owner = std::make_unique<std::shared_ptr<Py_buffer>>(std::move(buffer));
  held.add(nb::capsule(owner.release(),
                       [](void* one) noexcept { delete static_cast<std::shared_ptr<Py_buffer>*>(one); }));
  return found;
}

}  // namespace ringreduce
