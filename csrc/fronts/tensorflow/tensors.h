// TensorFlow's C interface, in the terms of the engine. It is the same in all versions, so what uses it does
// not depend on the compiler or the C++ library that TensorFlow was built with.
#pragma once

#include <tensorflow/c/kernels.h>
#include <tensorflow/c/ops.h>
#include <tensorflow/c/tf_datatype.h>
#include <tensorflow/c/tf_status.h>
#include <tensorflow/c/tf_tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fronts/shared/group.h"

namespace ringreduce::tf {

// Throws if the engine does not have the type.
DType dtype_of(TF_DataType type);

// The kernel has failed, and TensorFlow knows it.
class Failed {};

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  operator TF_Status*() { return status_.get(); }  // NOLINT(google-explicit-constructor): to pass it
  // Ends the kernel if TensorFlow has reported an error, by Failed.
  void check(TF_OpKernelContext* context) const;
  // The same outside a kernel, by a std::runtime_error.
  void check() const;

 private:
  struct Delete {
    void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
  };
  std::unique_ptr<TF_Status, Delete> status_;
};

using Shape = std::vector<std::int64_t>;

// A tensor that a kernel reads or writes.
class Tensor {
 public:
  explicit Tensor(TF_Tensor* tensor = nullptr) : tensor_(tensor) {}

  void* data() const { return TF_TensorData(tensor_.get()); }
  std::size_t count() const { return static_cast<std::size_t>(TF_TensorElementCount(tensor_.get())); }
  TF_DataType type() const { return TF_TensorType(tensor_.get()); }
  Shape shape() const;
  TF_Tensor* get() const { return tensor_.get(); }

 private:
  struct Delete {
    void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
  };
  std::unique_ptr<TF_Tensor, Delete> tensor_;
};

Tensor input(TF_OpKernelContext* context, int number);
Tensor output(TF_OpKernelContext* context, int number, TF_DataType type, const Shape& shape);

// Ends the kernel with an error, the second with the exception that is being handled.
void fail(TF_OpKernelContext* context, TF_Code code, const std::string& text);
void fail(TF_OpKernelContext* context);

struct Definition {
  const char* name;
  std::vector<const char*> inputs, outputs, attributes;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
};
void define(const Definition& definition);
void add_kernel(const char* name, TF_KernelBuilder* builder);

// Python, which knows the communicator, tells TensorFlow the shapes that depend on it.
void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
void same_shape(TF_ShapeInferenceContext* context, TF_Status* status);

std::int64_t integer(TF_OpKernelConstruction* construction, const char* name);

}  // namespace ringreduce::tf
