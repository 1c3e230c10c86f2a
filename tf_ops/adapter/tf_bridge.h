// SPDX-License-Identifier: Apache-2.0
// Conversions between TensorFlow's types and the core's. All are pure, but for
// those that allocate. Any thread.
#ifndef HVD_ADAPTER_TF_BRIDGE_H_
#define HVD_ADAPTER_TF_BRIDGE_H_

#include <optional>

#include "adapter/tf_compat.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// The result is never Aborted or Unavailable. MonitoredTrainingSession swallows
// those, and makes its session anew on one rank. A cause becomes a payload,
// which hvd_tf/_internal/causes.py finds in the exception.
[[nodiscard]] TfStatus ToTf(const Status& status);

// What ToTf has made this of, if that had a cause. TensorFlow adds to the text
// of an error, and keeps its code and its payloads.
[[nodiscard]] std::optional<Status> WithCause(const TfStatus& status);

// Makes a Status of TensorFlow's own error.
[[nodiscard]] Status FromTf(const TfStatus& status);

// kInvalidArgument for an element type that no collective carries.
[[nodiscard]] Result<DataType> ToCore(tensorflow::DataType dtype);

[[nodiscard]] Shape ToCore(const tensorflow::TensorShape& shape);
[[nodiscard]] Result<tensorflow::TensorShape> ToTf(const Shape& shape);

// The tensor's memory. Null when it has no elements.
[[nodiscard]] void* MutableData(const tensorflow::Tensor& tensor);

// Allocates output `index` of the kernel and returns a reference to it.
[[nodiscard]] Result<tensorflow::Tensor> AllocateOutput(
    tensorflow::OpKernelContext* ctx, int index,
    const tensorflow::TensorShape& shape);
// The same on the background thread, which must not wait for memory.
[[nodiscard]] Result<tensorflow::Tensor> AllocateLateOutput(
    tensorflow::OpKernelContext* ctx, int index,
    const tensorflow::TensorShape& shape);

// Output `index` with the shape of input `index`. If nobody else has a
// reference to the input's memory, the output takes that memory and the input
// is gone. Else the output is allocated.
[[nodiscard]] Result<tensorflow::Tensor> ForwardOrAllocateOutput(
    tensorflow::OpKernelContext* ctx, int index);

// Allocates a tensor that outlives the kernel, such as a variable's new value.
[[nodiscard]] Result<tensorflow::Tensor> AllocatePersistent(
    tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
    const tensorflow::TensorShape& shape);

// The same in host memory, for a kernel of any device.
[[nodiscard]] Result<tensorflow::Tensor> AllocateOnHost(
    tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
    const tensorflow::TensorShape& shape);

}  // namespace hvd

#endif  // HVD_ADAPTER_TF_BRIDGE_H_
