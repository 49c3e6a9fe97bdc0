// TensorFlow's operation for calls that ranks negotiate by name (ringreduce/frameworks/horovod). Python runs
// it: it is given the operation's inputs, asks for memory for the results, and says when they are complete.
// Until then no thread of TensorFlow waits, so operations whose inputs are ready can be submitted in any
// order.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "fronts/tensorflow/tensors.h"

namespace ringreduce::tf {
namespace {

// What Python sees of a tensor.
struct Array {
  void* data;
  const std::int64_t* shape;
  std::int64_t axes;
  std::int64_t type;
};

struct Kernel {
  std::int64_t call;
  bool waits;  // whether Python waits for the results in the thread that executes the operation
};

// An execution of the operation.
struct Pending {
  TF_OpKernelContext* context;
  std::function<void()> done;
  std::vector<Tensor> inputs, results;
  std::vector<Shape> shapes;
};

using Begin = void (*)(std::int64_t call, bool waits, Pending* pending, std::int64_t count,
                       const Array* inputs);
Begin begin = nullptr;

void* create_negotiated(TF_OpKernelConstruction* construction) {
  return new Kernel{integer(construction, "call"), integer(construction, "waits") != 0};
}

void destroy_negotiated(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  // TensorFlow gives the address of a parameter, which ends with this function. What lies there is a
  // std::function.
  auto* pending = new Pending{context, *reinterpret_cast<std::function<void()>*>(done), {}, {}, {}};
  try {
    std::vector<Array> arrays;
    for (int number = 0; number < TF_NumInputs(context); ++number) {
      pending->inputs.push_back(input(context, number));
      pending->shapes.push_back(pending->inputs.back().shape());
    }
    for (std::size_t number = 0; number < pending->inputs.size(); ++number) {
      const Tensor& tensor = pending->inputs[number];
      const Shape& shape = pending->shapes[number];
      arrays.push_back({tensor.data(), shape.data(), static_cast<std::int64_t>(shape.size()), tensor.type()});
    }
    const auto [call, waits] = *static_cast<const Kernel*>(kernel);
    begin(call, waits, pending, static_cast<std::int64_t>(arrays.size()), arrays.data());
  } catch (...) {
    fail(context);
    const auto end = std::move(pending->done);
    delete pending;
    end();
  }
}

const bool negotiated_registered = [] {
  constexpr const char* name = "RingreduceNegotiated";
  define({name,
          {"x: T"},
          {"y: R"},
          {"call: int", "waits: int", "T: list(type)", "R: list(type)"},
          unknown_shapes});
  add_kernel(name, TF_NewAsyncKernelBuilder(name, "CPU", create_negotiated, compute, destroy_negotiated));
  return true;
}();

}  // namespace

// Sets the function that begins an execution. It must not throw, and must lead to one finish().
extern "C" void ringreduce_tensorflow_begin(Begin function) {
  begin = function;
}

// Returns memory for a result, or null if there is none.
extern "C" void* ringreduce_tensorflow_result(Pending* pending, std::int64_t number, std::int64_t axes,
                                              const std::int64_t* shape) {
  const int place = static_cast<int>(number);
  try {
    const TF_DataType type = TF_ExpectedOutputDataType(pending->context, place);
    pending->results.push_back(output(pending->context, place, type, {shape, shape + axes}));
    return pending->results.back().data();
  } catch (...) {
    fail(pending->context);
    return nullptr;
  }
}

// Ends an execution, with an error if there is a text.
extern "C" void ringreduce_tensorflow_finish(Pending* pending, std::int64_t code, const char* text) {
  if (text != nullptr) fail(pending->context, static_cast<TF_Code>(code), text);
  const auto done = std::move(pending->done);
  delete pending;
  done();
}

}  // namespace ringreduce::tf
