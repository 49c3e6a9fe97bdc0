// Operators that callers define: a function in Python, or one with C's calling convention.
#include "reduce/user_op.h"

#include <nanobind/stl/string.h>

#include <optional>

#include "engine/planning/description.h"
#include "fronts/python/arguments.h"
#include "fronts/python/bindings.h"
#include "fronts/python/held.h"
#include "fronts/shared/thread_end.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using Function = void (*)(const void* left, void* right, std::size_t count);

class OpInC final : public UserOp {
 public:
  OpInC(const std::string& name, bool commutes, std::size_t element, std::uint64_t kind,
        std::uintptr_t function)
      : UserOp(name, commutes, element, kind), function_(reinterpret_cast<Function>(function)) {}
  void apply(const void* left, void* right, std::size_t count, DType /*dtype*/) const override {
    function_(left, right, count);
  }

 private:
  const Function function_;
};

// Python's function takes two memoryviews and the dtype's name. It returns None, or what is wrong.
class OpInPython final : public UserOp {
 public:
  OpInPython(const std::string& name, bool commutes, std::size_t element, std::uint64_t kind,
             nb::object function)
      : UserOp(name, commutes, element, kind), function_(std::move(function)) {}

  // Called without the GIL, except by a short call that has not released it.
  void apply(const void* left, void* right, std::size_t count, DType dtype) const override {
    const auto bytes = static_cast<Py_ssize_t>(count * (element > 0 ? element : size_of(dtype)));
    const WithGil locked;
    std::string wrong;
    try {
      wrong = or_stay([&] { return call(left, right, bytes, dtype); });
    } catch (const nb::python_error& error) {
      wrong = error.what();
    }
    if (!wrong.empty()) throw OpFailed("op '" + name + "'", wrong);
  }

 private:
  std::string call(const void* left, void* right, Py_ssize_t bytes, DType dtype) const {
    auto* const read = static_cast<char*>(const_cast<void*>(left));
    const nb::object from = nb::steal(PyMemoryView_FromMemory(read, bytes, PyBUF_READ));
    const nb::object to = nb::steal(PyMemoryView_FromMemory(static_cast<char*>(right), bytes, PyBUF_WRITE));
    const nb::object wrong = function_(from, to, name_of(dtype));
    return wrong.is_none() ? "" : nb::cast<std::string>(wrong);
  }

  const nb::object function_;
};

// `agreed`: all but the name and these arguments that ranks must agree on, in words.
std::uint64_t kind_of(const std::string& name, bool commutes, std::size_t element,
                      const std::string& agreed) {
  return hash_of(name + (commutes ? " commutes " : " ") + std::to_string(element) + " " + agreed);
}

}  // namespace

bool set_user_op(Call& call, nb::handle op, nb::handle factor, Held& held) {
  if (!nb::isinstance<UserOp>(op)) return false;
  call.user_op = nb::cast<const UserOp*>(op);
  const std::string of = " with op '" + call.user_op->name + "'";
  if (!factor.is_none()) throw InvalidArgument("factor can only be used with op 'sum', not" + of);
  if (call.device != on_host) {
    throw InvalidArgument("arrays in GPU memory cannot be used" + of + ": copy them to CPU memory");
  }
  held.add(nb::borrow(op));
  return true;
}

// The arrays were described as bytes.
void count_in_elements(Call& call, Blocks& blocks) {
  if (!call.user_op || call.user_op->element == 0) return;
  const auto divide = [&](std::size_t& bytes) {
    if (bytes % call.user_op->element != 0) throw InvalidArgument("x cannot be divided between elements");
    bytes /= call.user_op->element;
  };
  divide(call.count);
  for (std::optional<Extents>* extents : {&blocks.input, &blocks.output}) {
    if (!*extents) continue;
    for (std::size_t& count : (*extents)->count) divide(count);
    for (std::size_t& offset : (*extents)->offset) divide(offset);
  }
}

void bind_user_op(nb::module_& m) {
  const nb::class_<UserOp> type(m, "UserOp", "An operator that a caller defines.");
  m.def(
      "op_in_c",
      [](const std::string& name, bool commutes, std::size_t element, const std::string& agreed,
         std::uintptr_t function) -> UserOp* {
        return new OpInC(name, commutes, element, kind_of(name, commutes, element, agreed), function);
      },
      "name"_a, "commutes"_a, "element"_a, "agreed"_a, "function"_a, nb::rv_policy::take_ownership);
  m.def(
      "op_in_python",
      [](const std::string& name, bool commutes, std::size_t element, const std::string& agreed,
         nb::object function) -> UserOp* {
        return new OpInPython(name, commutes, element, kind_of(name, commutes, element, agreed),
                              std::move(function));
      },
      "name"_a, "commutes"_a, "element"_a, "agreed"_a, "function"_a, nb::rv_policy::take_ownership);
}

}  // namespace ringreduce
