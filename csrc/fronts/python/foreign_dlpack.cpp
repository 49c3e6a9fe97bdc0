// DLPack, versioned or not.
#include <nanobind/ndarray.h>

#include "fronts/python/foreign_arrays.h"
#include "fronts/python/held.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

constexpr const char* dlpack_protocol = "DLPack description";

struct Managed {
  nb::dlpack::dltensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Versioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;

  static constexpr std::uint64_t read_only = 1, copied = 2;
};

int device_of(const nb::dlpack::device& device, const char* argument) {
  if (device.device_type == nb::device::cpu::value) return on_host;
  if (device.device_type != nb::device::cuda::value &&
      device.device_type != nb::device::cuda_managed::value) {
    refuse(PyExc_ValueError, std::string(argument) + " is neither in CPU memory nor in GPU memory");
  }
  if (device.device_id < 0) {
    refuse_fields(argument, dlpack_protocol, "device number " + std::to_string(device.device_id));
  }
  return device.device_id;
}

Described of_dltensor(const nb::dlpack::dltensor& tensor, const char* argument) {
  Described found;
  found.shape = lengths(argument, dlpack_protocol, tensor.ndim, tensor.shape);
  if (tensor.strides) found.strides.emplace(tensor.strides, tensor.strides + tensor.ndim);
  found.device = device_of(tensor.device, argument);
  found.dtype = dtype_of_dlpack(tensor.dtype);
  found.type = "code " + std::to_string(tensor.dtype.code) + " of " + std::to_string(tensor.dtype.bits) +
               " bits and " + std::to_string(tensor.dtype.lanes) + " lanes";
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (data + tensor.byte_offset < data) refuse_fields(argument, dlpack_protocol, "too large an offset");
  if (data) found.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  return found;
}

// The capsule that the array gives, or the array itself if it is one. Those that know only the first version
// of DLPack take no argument, or refuse.
nb::object capsule_of(nb::handle object) {
  if (PyCapsule_CheckExact(object.ptr())) return nb::borrow(object);
  const nb::object method = nb::getattr(object, "__dlpack__", nb::none());
  if (method.is_none()) return nb::none();
  for (const bool named : {true, false}) {
    try {
      return named ? method(nb::arg("max_version") = nb::make_tuple(1, 1)) : method();
    } catch (nb::python_error& refused) {
      if (!refused.matches(PyExc_TypeError) && !refused.matches(PyExc_BufferError)) throw;
    }
  }
  return nb::none();
}

}  // namespace

std::optional<DType> dtype_of_dlpack(nb::dlpack::dtype type) {
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

std::optional<Described> by_dlpack(nb::handle object, const char* argument, Held& held) {
  nb::object capsule = capsule_of(object);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    const auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    held.add(std::move(capsule));  // which then deletes the description
    return of_dltensor(managed->tensor, argument);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) return std::nullopt;
  const auto* versioned = static_cast<Versioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
  if (versioned->major > 1) {
    refuse_fields(argument, dlpack_protocol, "version " + std::to_string(versioned->major));
  }
  held.add(std::move(capsule));
  Described found = of_dltensor(versioned->tensor, argument);
  found.read_only = (versioned->flags & (Versioned::read_only | Versioned::copied)) != 0;
  return found;
}

}  // namespace ringreduce
