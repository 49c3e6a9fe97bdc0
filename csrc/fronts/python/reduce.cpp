// The kernels, for tests: the submodule `reduce`, over plain buffers of bytes.
#include "reduce/reduce.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "fronts/python/bindings.h"
#include "reduce/copy_to_reader.h"
#include "reduce/encoding.h"
#include "reduce/instruction_sets.h"
#include "reduce/string_copy.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

using Source = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Destination = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Enum>
Enum find(const std::string& name, int count, const char* what) {
  if (const auto found = find_named<Enum>(name, count)) return *found;
  throw std::invalid_argument(std::string("unknown ") + what + ": " + name);
}

DType dtype_named(const std::string& name) {
  return find<DType>(name, dtype_count, "dtype");
}

Op op_named(const std::string& name) {
  return find<Op>(name, op_count, "op");
}

template <class Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.emplace_back(name_of(static_cast<Enum>(i)));
  return all;
}

// An empty name stands for the set in use.
const InstructionSet& set_named(const std::string& name) {
  const std::string wanted = name.empty() ? instruction_set() : name;
  for (const InstructionSet* set : instruction_sets()) {
    if (wanted == set->name) return *set;
  }
  throw std::invalid_argument("this machine does not have instruction set " + wanted);
}

// The addresses of spans, which must all have the same number of bytes.
template <class Pointer, class Span>
std::vector<Pointer> addresses(const std::vector<Span>& spans, std::size_t bytes, const char* what) {
  if (spans.empty()) throw std::invalid_argument(std::string("no ") + what);
  std::vector<Pointer> all;
  for (const Span& span : spans) {
    if (span.size() != bytes) throw std::invalid_argument(std::string(what) + " differ in size");
    all.push_back(span.data());
  }
  return all;
}

void combine(const std::string& dtype_name, const std::string& op_name,
             const std::vector<Destination>& destinations, const std::vector<Source>& sources, double scale,
             const std::string& isa) {
  const DType dtype = dtype_named(dtype_name);
  const Op op = op_named(op_name);
  const InstructionSet& set = set_named(isa);
  const Combine function = set.combine[static_cast<int>(dtype)][static_cast<int>(op)];
  if (function == nullptr) throw std::invalid_argument(op_name + " is not defined for dtype " + dtype_name);
  const std::size_t bytes = sources.empty() ? 0 : sources[0].size();
  if (bytes % size_of(dtype) != 0) throw std::invalid_argument("sources end inside an element");
  const auto from = addresses<const void*>(sources, bytes, "sources");
  const auto to = addresses<void*>(destinations, bytes, "destinations");
  WithoutGil release;
  function(to.data(), static_cast<int>(to.size()), from.data(), static_cast<int>(from.size()),
           bytes / size_of(dtype), scale);
}

// isa "string": with the instruction for strings, whether or not it pays here.
void copy_bytes(const std::vector<Destination>& destinations, const Source& source, const std::string& isa) {
  const auto to = addresses<void*>(destinations, source.size(), "destinations");
  if (isa == "string") {
    for (void* one : to) string_copy::copy(one, source.data(), source.size());
    return;
  }
  const InstructionSet& set = set_named(isa);
  WithoutGil release;
  set.copy(to.data(), static_cast<int>(to.size()), source.data(), source.size());
}

// Copies each source with the same CopyToReader, and returns whether one of the same size goes past the cache
// after each.
std::vector<bool> copy_to_reader(const std::vector<Destination>& destinations,
                                 const std::vector<Source>& sources, float slow_from, float least_gain,
                                 float least_gain_of_short) {
  if (destinations.size() != sources.size()) throw std::invalid_argument("not a destination for each source");
  CopyToReader copy({slow_from, least_gain, least_gain_of_short});
  std::vector<bool> past;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (destinations[i].size() != sources[i].size()) throw std::invalid_argument("spans differ in size");
    copy(destinations[i].data(), sources[i].data(), sources[i].size());
    past.push_back(copy.goes_past(sources[i].size()));
  }
  return past;
}

Encoding wire_named(const std::string& name) {
  return find<Encoding>(name, encoding_count, "wire");
}

// The codec for spans of these lengths in bytes.
Codec codec_between(const std::string& wire_name, std::size_t decoded, std::size_t encoded,
                    const std::string& isa) {
  const Encoding wire = wire_named(wire_name);
  const Codec codec = set_named(isa).codec[static_cast<int>(wire)];
  if (codec.encode == nullptr) throw std::invalid_argument("not a wire format: " + wire_name);
  if (decoded % sizeof(float) != 0) throw std::invalid_argument("values end inside a float32");
  if (encoded != encoded_bytes(wire, decoded / sizeof(float))) {
    throw std::invalid_argument("the encoded span does not have the length of its encoded values");
  }
  return codec;
}

void encode(const std::string& wire, const Destination& encoded, const Source& values,
            const std::string& isa) {
  const Codec codec = codec_between(wire, values.size(), encoded.size(), isa);
  const WithoutGil release;
  codec.encode(encoded.data(), reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float));
}

void decode(const std::string& wire, const Destination& values, const Source& encoded,
            const std::string& isa) {
  const Codec codec = codec_between(wire, values.size(), encoded.size(), isa);
  const WithoutGil release;
  codec.decode(reinterpret_cast<float*>(values.data()), encoded.data(), values.size() / sizeof(float));
}

std::vector<std::string> set_names() {
  std::vector<std::string> all;
  for (const InstructionSet* set : instruction_sets()) all.emplace_back(set->name);
  return all;
}

}  // namespace

void bind_reduce(nb::module_& m) {
  nb::module_ sub = m.def_submodule("reduce", "The kernels that combine spans of elements on the CPU.");
  sub.def("combine", combine, nb::arg("dtype"), nb::arg("op"), nb::arg("destinations"), nb::arg("sources"),
          nb::arg("scale") = 1.0, nb::arg("isa") = "");
  sub.def("copy", copy_bytes, nb::arg("destinations"), nb::arg("source"), nb::arg("isa") = "");
  sub.def("copy_to_reader", copy_to_reader, nb::arg("destinations"), nb::arg("sources"), nb::arg("slow_from"),
          nb::arg("least_gain"), nb::arg("least_gain_of_short"));
  sub.def("encode", encode, nb::arg("wire"), nb::arg("encoded"), nb::arg("values"), nb::arg("isa") = "");
  sub.def("decode", decode, nb::arg("wire"), nb::arg("values"), nb::arg("encoded"), nb::arg("isa") = "");
  sub.def(
      "encoded_bytes",
      [](const std::string& wire, std::size_t count) { return encoded_bytes(wire_named(wire), count); },
      nb::arg("wire"), nb::arg("count"));
  sub.def("wires", [] { return names<Encoding>(encoding_count); });
  sub.def("instruction_set", instruction_set);
  sub.def("instruction_sets", set_names);
  sub.def("dtypes", [] { return names<DType>(dtype_count); });
  sub.def("ops", [] { return names<Op>(op_count); });
  sub.def(
      "supports",
      [](const std::string& dtype, const std::string& op) {
        return supports(dtype_named(dtype), op_named(op));
      },
      nb::arg("dtype"), nb::arg("op"));
  sub.def("size_of", [](const std::string& dtype) { return size_of(dtype_named(dtype)); }, nb::arg("dtype"));
}

}  // namespace ringreduce
