#include "fronts/tensorflow/tensors.h"

#include <iterator>
#include <stdexcept>
#include <string>

#include "fronts/shared/embedded.h"
#include "fronts/shared/tables.h"

namespace ringreduce::tf {
namespace {

// In the order of DType.
constexpr TF_DataType types[] = {TF_DOUBLE,      TF_FLOAT,     TF_HALF,   TF_BFLOAT16, TF_FLOAT8_E4M3FN,
                                 TF_FLOAT8_E5M2, TF_INT64,     TF_INT32,  TF_INT16,    TF_INT8,
                                 TF_UINT8,       TF_BOOL,      TF_UINT16, TF_UINT32,   TF_UINT64,
                                 TF_COMPLEX64,   TF_COMPLEX128};
static_assert(std::size(types) == dtype_count);

// In the order of Outcome.
constexpr TF_Code codes[] = {TF_INVALID_ARGUMENT,    TF_ABORTED,   TF_DEADLINE_EXCEEDED,
                             TF_FAILED_PRECONDITION, TF_CANCELLED, TF_INTERNAL};

// Bytes from which a result lies in memory that ranks of the host access in place, and that is not new each
// time.
constexpr std::size_t pooled = 256 << 10;

void free_pooled(void* block, std::size_t /*bytes*/, void* /*argument*/) {
  free_block(block);
}

}  // namespace

DType dtype_of(TF_DataType type) {
  return same<DType>(types, type).value();  // Python has checked it
}

Shape Tensor::shape() const {
  Shape dims;
  for (int axis = 0; axis < TF_NumDims(tensor_.get()); ++axis) dims.push_back(TF_Dim(tensor_.get(), axis));
  return dims;
}

Tensor input(TF_OpKernelContext* context, int number) {
  Status status;
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, number, &tensor, status);
  status.check(context);
  return Tensor(tensor);
}

Tensor output(TF_OpKernelContext* context, int number, TF_DataType type, const Shape& shape) {
  Status status;
  const int axes = static_cast<int>(shape.size());
  std::size_t bytes = TF_DataTypeSize(type);
  for (const auto length : shape) bytes *= static_cast<std::size_t>(length);
  TF_Tensor* tensor = nullptr;
  if (void* block = bytes < pooled ? nullptr : allocate_block(bytes, true)) {
    tensor = TF_NewTensor(type, shape.data(), axes, block, bytes, free_pooled, nullptr);
    TF_SetOutput(context, number, tensor, status);
  } else {
    tensor = TF_AllocateOutput(context, number, type, shape.data(), axes, bytes, status);
  }
  Tensor result(tensor);
  status.check(context);
  return result;
}

void Status::check(TF_OpKernelContext* context) const {
  if (TF_GetCode(status_.get()) == TF_OK) return;
  TF_OpKernelContext_Failure(context, status_.get());
  throw Failed();
}

void Status::check() const {
  if (TF_GetCode(status_.get()) != TF_OK) throw std::runtime_error(TF_Message(status_.get()));
}

void fail(TF_OpKernelContext* context, TF_Code code, const std::string& text) {
  Status status;
  TF_SetStatus(status, code, ("ringreduce: " + text).c_str());
  TF_OpKernelContext_Failure(context, status);
}

void fail(TF_OpKernelContext* context) {
  try {
    throw;
  } catch (const Failed&) {
    return;  // TensorFlow knows
  } catch (const Trouble& trouble) {
    if (trouble.outcome == Outcome::interrupted) postpone_exception();
    fail(context, codes[static_cast<int>(trouble.outcome)], trouble.what());
  } catch (const std::exception& error) {
    fail(context, TF_INTERNAL, error.what());
  } catch (...) {
    fail(context, TF_INTERNAL, "unknown error");
  }
}

void define(const Definition& definition) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(definition.name);
  for (const char* one : definition.inputs) TF_OpDefinitionBuilderAddInput(builder, one);
  for (const char* one : definition.outputs) TF_OpDefinitionBuilderAddOutput(builder, one);
  for (const char* one : definition.attributes) TF_OpDefinitionBuilderAddAttr(builder, one);
  // In a tf.function, operations with this mark run in the order in which the program makes them, and are
  // neither left out, nor merged, nor run in advance.
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shapes);
  Status status;
  TF_RegisterOpDefinition(builder, status);
  status.check();
}

void add_kernel(const char* name, TF_KernelBuilder* builder) {
  Status status;
  TF_RegisterKernelBuilder(name, builder, status);
  status.check();
}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void same_shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}

std::int64_t integer(TF_OpKernelConstruction* construction, const char* name) {
  Status status;
  std::int64_t value = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  status.check();
  return value;
}

}  // namespace ringreduce::tf
