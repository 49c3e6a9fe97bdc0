#include "fronts/python/fast_calls.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "fronts/python/arrays.h"
#include "fronts/python/schedule_caster.h"
#include "fronts/python/values.h"
#include "schedule/catalogue.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

struct Argument {
  // The methods take the first three without names, in this order.
  enum Name : std::uint8_t { x, root, op, out, counts, send_counts, recv_counts, algorithm, timeout, number };
  static constexpr int named = out;
};
constexpr const char* argument_names[Argument::number] = {
    "x", "root", "op", "out", "counts", "send_counts", "recv_counts", "algorithm", "timeout"};
using Arguments = std::array<PyObject*, Argument::number>;  // null: not given

// A broadcast's x is both its input and its result.
constexpr bool has_one_array(Collective collective) {
  return contents(collective, true) == Holds::on_root && ends_alike(collective);
}

constexpr bool takes(Collective collective, Argument::Name argument) {
  const bool exchanges = contents(collective, true) == Holds::exchanged;
  switch (argument) {
    case Argument::root:
      return rooted(collective);
    case Argument::op:
      return reduces(collective);
    case Argument::out:
      return contents(collective, false) != Holds::nothing && !has_one_array(collective);
    case Argument::counts:
      return has_blocks(collective) && !exchanges;
    case Argument::send_counts:
    case Argument::recv_counts:
      return exchanges;
    case Argument::timeout:
      return true;
    default:
      return contents(collective, true) != Holds::nothing;
  }
}

constexpr bool is_optional(int argument) {
  return argument != Argument::root && argument != Argument::op && argument != Argument::algorithm;
}

Arguments interned_names{};  // of the arguments

// False if an argument is none of these. None stands for an optional argument that is not given.
bool sort_arguments(std::uint32_t taken, PyObject* const* given, std::size_t count, PyObject* keywords,
                    Arguments& sorted) {
  int place = 0;
  for (std::size_t i = 0; i < count; ++i, ++place) {
    while (place < Argument::named && !(taken >> place & 1)) ++place;
    if (place >= Argument::named) return false;
    sorted[place] = given[i];
  }
  const Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GetItem(keywords, i);
    int found = 0;
    while (found < Argument::number && interned_names[found] != name) ++found;
    if (found == Argument::number || !(taken >> found & 1) || sorted[found]) return false;
    sorted[found] = given[count + static_cast<std::size_t>(i)];
  }
  for (int i = 0; i < Argument::number; ++i) {
    if (sorted[i] == Py_None && is_optional(i)) sorted[i] = nullptr;
  }
  return true;
}

// Nothing if the method must look at the name.
std::optional<int> algorithm_of(Collective collective, PyObject* given) {
  if (!given) return automatic;
  if (!PyUnicode_Check(given)) return std::nullopt;
  const std::string_view name = text(given, "algorithm");
  if (name == "auto") return automatic;
  const Entry* const entry = find_algorithm(collective, name);
  if (!entry || name == "synthesised") return std::nullopt;  // whose first call measures links
  return static_cast<int>(entry - catalogue().data());
}

// The extents of blocks with these numbers of rows. Nothing if the method must look at them.
std::optional<Extents> extents_of_rows(PyObject* rows, std::size_t elements, int world) {
  constexpr std::size_t most = std::size_t{1} << 47;
  if ((!PyList_CheckExact(rows) && !PyTuple_CheckExact(rows)) || PySequence_Size(rows) != world)
    return std::nullopt;
  std::vector<std::size_t> found(static_cast<std::size_t>(world));
  for (int i = 0; i < world; ++i) {
    const nb::object number = nb::steal(PySequence_GetItem(rows, i));
    if (!number.is_valid()) PyErr_Clear();  // another thread has shortened the list
    if (!number.is_valid() || !PyLong_CheckExact(number.ptr())) return std::nullopt;
    const std::size_t count = PyLong_AsSize_t(number.ptr());
    if (count > most) {  // as is what an error returns
      PyErr_Clear();
      return std::nullopt;
    }
    found[static_cast<std::size_t>(i)] = count * elements;
  }
  return extents_of(std::move(found));
}

bool read_blocks(Collective collective, const Arguments& given, std::size_t row_elements, int world,
                 Blocks& blocks) {
  PyObject* const sent = given[Argument::counts] ? given[Argument::counts] : given[Argument::send_counts];
  PyObject* const received = given[Argument::recv_counts];
  if (!sent && !received) return true;
  if (takes(collective, Argument::recv_counts) && (!sent || !received)) return false;
  blocks.input = extents_of_rows(sent, row_elements, world);
  if (received) blocks.output = extents_of_rows(received, row_elements, world);
  return blocks.input && (blocks.output || !received);
}

// The rows of the result. Nothing if x cannot be divided.
std::optional<std::size_t> rows_of_result(const Communicator& comm, Collective collective, const Rows& x,
                                          const Blocks& blocks) {
  const bool from_own = contents(collective, true) == Holds::own_block;
  const bool to_own = contents(collective, false) == Holds::own_block;
  const auto world = static_cast<std::size_t>(comm.size());
  if (blocks.input) {
    const Extents& received = blocks.output ? *blocks.output : *blocks.input;
    const std::size_t all = received.offset.back() + received.count.back();
    if (x.elements == 0) return std::nullopt;
    return (to_own ? received.count[static_cast<std::size_t>(comm.rank())] : all) / x.elements;
  }
  if (!to_own) return from_own ? x.count * world : x.count;
  return x.count % world == 0 ? std::optional(x.count / world) : std::nullopt;
}

}  // namespace

void name_arguments() {
  for (int i = 0; i < Argument::number; ++i) {
    interned_names[i] = PyUnicode_InternFromString(argument_names[i]);
    if (!interned_names[i]) throw nb::python_error();
  }
}

std::uint32_t usual_arguments(Collective collective) {
  std::uint32_t taken = 0;
  for (int i = 0; i < Argument::number; ++i) {
    if (takes(collective, static_cast<Argument::Name>(i))) taken |= 1U << i;
  }
  return taken;
}

bool read_usual_call(const Communicator& comm, Collective collective, std::uint32_t taken,
                     PyObject* const* arguments, std::size_t count, PyObject* keywords, UsualCall& read) {
  Arguments given{};
  if (!sort_arguments(taken, arguments, count, keywords, given)) return false;
  PyObject* const op = given[Argument::op];
  const std::optional<int> algorithm = algorithm_of(collective, given[Argument::algorithm]);
  if (!algorithm || (op && !PyUnicode_Check(op))) return false;
  const int root = given[Argument::root] ? root_of(comm, given[Argument::root]) : 0;
  PyObject *const x = given[Argument::x], *out = given[Argument::out];
  const bool needs_x = has_array(collective, true, comm.rank() == root) || has_one_array(collective);
  const bool has_result = has_array(collective, false, comm.rank() == root);
  const bool makes = has_result && !out && has_blocks(collective);
  if (needs_x && !x) return false;
  const bool uneven = given[Argument::counts] || given[Argument::send_counts] || given[Argument::recv_counts];
  if (makes || uneven) {
    // Only the root has all blocks of a scatter, so the others know the length of a row from `out`.
    const bool by_result = contents(collective, true) == Holds::on_root && out;
    const std::optional<Rows> rows = rows_of(by_result ? out : needs_x ? x : nullptr);
    if (!rows || !read_blocks(collective, given, rows->elements, comm.size(), read.blocks)) return false;
    if (makes) {
      const std::optional<std::size_t> found = rows_of_result(comm, collective, *rows, read.blocks);
      if (!found) return false;
      read.made = new_rows(x, *found);
      out = read.made.ptr();
    }
  }
  if (!out) out = x;
  const auto array = [](PyObject* one) { return one ? nb::handle(one) : nb::handle(Py_None); };
  read.call = make_call(comm, collective, array(x), array(out), root, read.blocks, read.held);
  if (op) set_op(read.call, op, nb::none());
  if (given[Argument::timeout]) read.call.timeout = seconds(given[Argument::timeout], "timeout");
  read.call.algorithm = *algorithm;
  if (has_result) read.result = out;
  return read.call.device == on_host;
}

}  // namespace ringreduce
