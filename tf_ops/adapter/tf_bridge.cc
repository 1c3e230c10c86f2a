// SPDX-License-Identifier: Apache-2.0
// Conversions between TensorFlow's types and the core's.
#include "adapter/tf_bridge.h"

#include <sstream>
#include <string_view>
#include <utility>

namespace hvd {
namespace {

namespace tf = ::tensorflow;

constexpr char kCausePayload[] = "hvd_tf/cause";

absl::StatusCode ToTf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return absl::StatusCode::kOk;
    case StatusCode::kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case StatusCode::kFailedPrecondition:
      return absl::StatusCode::kFailedPrecondition;
    case StatusCode::kPeerLost:
      return absl::StatusCode::kUnknown;
    case StatusCode::kCancelled:
      return absl::StatusCode::kCancelled;
    case StatusCode::kResourceExhausted:
      return absl::StatusCode::kResourceExhausted;
    case StatusCode::kInternal:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

// The code that ToTf makes this one of.
StatusCode ToCore(absl::StatusCode code) {
  for (uint8_t i = 1; i < kStatusCodeCount; ++i) {
    if (ToTf(static_cast<StatusCode>(i)) == code) {
      return static_cast<StatusCode>(i);
    }
  }
  return StatusCode::kInternal;
}

// The payload for hvd_tf/_internal/causes.py and for WithCause. It has the
// numbers of kind and rank, the length of the tensor's name and the name, and
// the message without what TensorFlow adds to it.
std::string CauseText(const Cause& cause, const std::string& message) {
  return std::to_string(static_cast<int>(cause.kind)) + " " +
         std::to_string(cause.rank) + " " +
         std::to_string(cause.tensor.size()) + " " + cause.tensor + message;
}

}  // namespace

TfStatus ToTf(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  TfStatus result(ToTf(status.code()), status.message());
  if (const Cause* cause = status.cause()) {
    const std::string text = CauseText(*cause, status.message());
    // A view, because TensorFlow 2.21 exports no other constructor.
    result.SetPayload(kCausePayload, absl::Cord(std::string_view(text)));
  }
  return result;
}

std::optional<Status> WithCause(const TfStatus& status) {
  const auto payload = status.GetPayload(kCausePayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  std::istringstream numbers(text);
  int kind = 0;
  Cause cause;
  size_t length = 0;
  numbers >> kind >> cause.rank >> length;
  const size_t start = static_cast<size_t>(numbers.tellg()) + 1;
  cause.kind = static_cast<CauseKind>(kind);
  cause.tensor = text.substr(start, length);
  return Status(ToCore(status.code()), text.substr(start + length),
                std::move(cause));
}

Status FromTf(const TfStatus& status) {
  if (status.ok()) return Status::Ok();
  std::string text(status.message());
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return ResourceExhausted(std::move(text));
  }
  return InvalidArgument(std::move(text));
}

Result<DataType> ToCore(tf::DataType dtype) {
  switch (dtype) {
    case tf::DT_UINT8:
      return DataType::kUint8;
    case tf::DT_INT8:
      return DataType::kInt8;
    case tf::DT_UINT16:
      return DataType::kUint16;
    case tf::DT_INT16:
      return DataType::kInt16;
    case tf::DT_INT32:
      return DataType::kInt32;
    case tf::DT_INT64:
      return DataType::kInt64;
    case tf::DT_HALF:
      return DataType::kFloat16;
    case tf::DT_BFLOAT16:
      return DataType::kBfloat16;
    case tf::DT_FLOAT:
      return DataType::kFloat32;
    case tf::DT_DOUBLE:
      return DataType::kFloat64;
    case tf::DT_BOOL:
      return DataType::kBool;
    default:  // TensorFlow has some fifty, and adds more.
      return InvalidArgument("dtype " + tf::DataTypeString(dtype) +
                             " cannot be sent; cast the tensor first");
  }
}

Shape ToCore(const tf::TensorShape& shape) {
  Shape dims(static_cast<size_t>(shape.dims()));
  for (int i = 0; i < shape.dims(); ++i) {
    dims[static_cast<size_t>(i)] = shape.dim_size(i);
  }
  return dims;
}

Result<tf::TensorShape> ToTf(const Shape& shape) {
  tf::TensorShape tf_shape;
  // Also catches a product that overflows int64.
  const TfStatus built = tf::TensorShape::BuildTensorShape(shape, &tf_shape);
  if (!built.ok()) return FromTf(built);
  return tf_shape;
}

void* MutableData(const tf::Tensor& tensor) {
  return tensor.NumElements() == 0 ? nullptr : tensor.data();
}

Result<tf::Tensor> AllocateOutput(tf::OpKernelContext* ctx, int index,
                                  const tf::TensorShape& shape) {
  tf::Tensor* output = nullptr;
  const TfStatus allocated = ctx->allocate_output(index, shape, &output);
  if (!allocated.ok()) return FromTf(allocated);
  return *output;
}

Result<tf::Tensor> AllocateLateOutput(tf::OpKernelContext* ctx, int index,
                                      const tf::TensorShape& shape) {
  tf::AllocationAttributes at_once;
  at_once.retry_on_failure = false;
  tf::Tensor output;
  const TfStatus allocated =
      ctx->allocate_temp(ctx->expected_output_dtype(index), shape, &output,
                         ctx->output_alloc_attr(index), at_once);
  if (!allocated.ok()) return FromTf(allocated);
  ctx->set_output(index, output);
  return output;
}

Result<tf::Tensor> ForwardOrAllocateOutput(tf::OpKernelContext* ctx,
                                           int index) {
  const tf::TensorShape shape = ctx->input(index).shape();
  tf::Tensor* output = nullptr;
  const TfStatus allocated =
      ctx->forward_input_or_allocate_output({index}, index, shape, &output);
  if (!allocated.ok()) return FromTf(allocated);
  return *output;
}

Result<tf::Tensor> AllocatePersistent(tf::OpKernelContext* ctx,
                                      tf::DataType dtype,
                                      const tf::TensorShape& shape) {
  tf::Tensor tensor;
  const TfStatus allocated = ctx->allocate_temp(dtype, shape, &tensor);
  if (!allocated.ok()) return FromTf(allocated);
  return tensor;
}

Result<tf::Tensor> AllocateOnHost(tf::OpKernelContext* ctx, tf::DataType dtype,
                                  const tf::TensorShape& shape) {
  tf::AllocatorAttributes on_host;
  on_host.set_on_host(true);
  tf::Tensor tensor;
  const TfStatus allocated = ctx->allocate_temp(dtype, shape, &tensor, on_host);
  if (!allocated.ok()) return FromTf(allocated);
  return tensor;
}

}  // namespace hvd
