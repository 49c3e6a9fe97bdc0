// TensorFlow's operations for the calls of a communicator. A call runs in the thread in which TensorFlow
// executes the operation.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "fronts/tensorflow/interrupts.h"
#include "fronts/tensorflow/tensors.h"

namespace ringreduce::tf {
namespace {

// The attributes of an operation, the same for all.
struct Settings {
  std::int64_t communicator, ranks, op, root, dest, source, tag;
  TF_DataType type;  // of the result of a receive
  Shape shape;
};

Shape shape_of_result(TF_OpKernelConstruction* construction) {
  Status status;
  std::int32_t length = 0;
  std::int32_t size = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, "shape", &length, &size, status);
  status.check();
  Shape shape(static_cast<std::size_t>(length));
  TF_OpKernelConstruction_GetAttrInt64List(construction, "shape", shape.data(), length, status);
  status.check();
  return shape;
}

TF_DataType type_of_result(TF_OpKernelConstruction* construction) {
  Status status;
  TF_DataType type = TF_FLOAT;
  TF_OpKernelConstruction_GetAttrType(construction, "R", &type, status);
  status.check();
  return type;
}

void* create(TF_OpKernelConstruction* construction) {
  try {
    const auto of = [&](const char* name) { return integer(construction, name); };
    return new Settings{of("comm"),
                        of("ranks"),
                        of("op"),
                        of("root"),
                        of("dest"),
                        of("source"),
                        of("tag"),
                        type_of_result(construction),
                        shape_of_result(construction)};
  } catch (const std::exception& error) {
    Status status;
    TF_SetStatus(status, TF_FAILED_PRECONDITION, (std::string("ringreduce: ") + error.what()).c_str());
    TF_OpKernelConstruction_Failure(construction, status);
    return nullptr;
  }
}

void destroy(void* settings) {
  delete static_cast<Settings*>(settings);
}

template <void (*compute)(const Settings&, TF_OpKernelContext*)>
void run_kernel(void* settings, TF_OpKernelContext* context) {
  try {
    const Interruptible interruptible;
    compute(*static_cast<const Settings*>(settings), context);
  } catch (...) {
    fail(context);
  }
}

// --- collectives
// ------------------------------------------------------------------------------------------------

Shape shape_after(Collective collective, Shape shape, std::int64_t ranks) {
  if (collective == Collective::all_reduce || collective == Collective::broadcast) return shape;
  if (shape.empty()) throw Trouble(Outcome::refused, -1, "x must have at least one axis");
  if (collective == Collective::all_gather) {
    shape[0] *= ranks;
  } else if (shape[0] % ranks != 0) {
    const auto text = "x has " + std::to_string(shape[0]) + " rows, which are not divisible among " +
                      std::to_string(ranks) + " ranks";
    throw Trouble(Outcome::refused, -1, text.c_str());
  } else if (collective == Collective::reduce_scatter) {
    shape[0] /= ranks;
  }
  return shape;
}

template <Collective collective>
void run_collective(const Settings& settings, TF_OpKernelContext* context) {
  constexpr bool of_result = collective == Collective::reduce_scatter;
  const Tensor x = input(context, 0);
  const Tensor y = output(context, 0, x.type(), shape_after(collective, x.shape(), settings.ranks));
  std::size_t count = (of_result ? y : x).count();
  if (collective == Collective::all_to_all) count /= static_cast<std::size_t>(settings.ranks);
  run(settings.communicator, Call{.collective = collective,
                                  .input = x.data(),
                                  .output = y.data(),
                                  .count = count,
                                  .dtype = dtype_of(x.type()),
                                  .op = static_cast<Op>(settings.op),
                                  .root = static_cast<int>(settings.root)});
}

// --- messages
// ---------------------------------------------------------------------------------------------------

Transfer transfer(bool sends, const Tensor& tensor, std::int64_t peer, std::int64_t tag) {
  return {.sends = sends,
          .peer = static_cast<int>(peer),
          .data = tensor.data(),
          .count = tensor.count(),
          .dtype = dtype_of(tensor.type()),
          .tag = static_cast<int>(tag)};
}

void send(const Settings& settings, TF_OpKernelContext* context) {
  run(settings.communicator, transfer(true, input(context, 0), settings.dest, settings.tag));
}

void recv(const Settings& settings, TF_OpKernelContext* context) {
  const Tensor y = output(context, 0, settings.type, settings.shape);
  run(settings.communicator, transfer(false, y, settings.source, settings.tag));
}

void sendrecv(const Settings& settings, TF_OpKernelContext* context) {
  const Tensor x = input(context, 0);
  const Tensor y = output(context, 0, settings.type, settings.shape);
  swap(settings.communicator, transfer(true, x, settings.dest, settings.tag),
       transfer(false, y, settings.source, settings.tag));
}

// --- registration
// -----------------------------------------------------------------------------------------------

template <void (*compute)(const Settings&, TF_OpKernelContext*)>
void add(const char* name, std::vector<const char*> inputs, std::vector<const char*> outputs,
         void (*shapes)(TF_ShapeInferenceContext*, TF_Status*)) {
  std::vector<const char*> attributes = {"comm: int",     "ranks: int = 1",     "op: int = 0",
                                         "root: int = 0", "dest: int = 0",      "source: int = 0",
                                         "tag: int = 0",  "R: type = DT_FLOAT", "shape: list(int) = []"};
  if (!inputs.empty()) attributes.push_back("T: type");
  define({name, std::move(inputs), std::move(outputs), std::move(attributes), shapes});
  add_kernel(name, TF_NewKernelBuilder(name, "CPU", create, run_kernel<compute>, destroy));
}

const bool registered = [] {
  add<run_collective<Collective::all_reduce>>("RingreduceAllReduce", {"x: T"}, {"y: T"}, same_shape);
  add<run_collective<Collective::all_gather>>("RingreduceAllGather", {"x: T"}, {"y: T"}, unknown_shapes);
  add<run_collective<Collective::reduce_scatter>>("RingreduceReduceScatter", {"x: T"}, {"y: T"},
                                                  unknown_shapes);
  add<run_collective<Collective::all_to_all>>("RingreduceAllToAll", {"x: T"}, {"y: T"}, same_shape);
  add<run_collective<Collective::broadcast>>("RingreduceBroadcast", {"x: T"}, {"y: T"}, same_shape);
  add<send>("RingreduceSend", {"x: T"}, {}, unknown_shapes);
  add<recv>("RingreduceRecv", {}, {"y: R"}, unknown_shapes);
  add<sendrecv>("RingreduceSendrecv", {"x: T"}, {"y: R"}, unknown_shapes);
  return true;
}();

}  // namespace
}  // namespace ringreduce::tf
