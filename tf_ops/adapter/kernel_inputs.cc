// SPDX-License-Identifier: Apache-2.0
// Reads inputs and attributes of kernels into signatures and calls.
#include "adapter/kernel_inputs.h"

#include <cmath>
#include <optional>
#include <utility>

#include "adapter/tf_bridge.h"
#include "core/decimal.h"
#include "core/quoted.h"
#include "core/verbs/verb_rules.h"
#include "cpu/elementwise.h"
#include "cpu/finite.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Scales are decimal text, because TensorFlow's float attributes have only 24
// bits.
Result<double> ParseScale(const char* attribute, const std::string& text) {
  const std::optional<double> value = ParseDecimal(text);
  if (!value.has_value() || !std::isfinite(*value)) {
    return InvalidArgument(std::string(attribute) + " " + Quoted(text) +
                           " is not a finite number");
  }
  return *value;
}

Status CheckAdasum(const Signature& signature) {
  if (!RulesOf(signature.verb).offers_adasum) {
    return InvalidArgument(std::string(Name(signature.verb)) +
                           " does not offer Adasum; use Average, Sum, Min, Max "
                           "or Product");
  }
  if (!IsFloating(signature.dtype)) {
    return InvalidArgument(
        "Adasum weighs tensors by their dot products, so it needs floating "
        "point, not " +
        std::string(Name(signature.dtype)) + "; cast the tensor or use Sum");
  }
  return Status::Ok();
}

}  // namespace

Status DescribeInputs(tf::OpKernelContext* ctx, int count, Signature* signature,
                      int first) {
  const Result<DataType> dtype = ToCore(ctx->input_dtype(first));
  if (!dtype.ok()) return dtype.status();
  signature->dtype = dtype.value();
  signature->wire_dtype = dtype.value();
  signature->shapes.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    signature->shapes.push_back(ToCore(ctx->input(first + i).shape()));
  }
  return Status::Ok();
}

bool HaveShapes(tf::OpKernelContext* ctx, const std::vector<Shape>& shapes,
                int first) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int input = first + static_cast<int>(i);
    const tf::TensorShape& shape = ctx->input(input).shape();
    if (static_cast<size_t>(shape.dims()) != shapes[i].size()) return false;
    for (int d = 0; d < shape.dims(); ++d) {
      if (shape.dim_size(d) != shapes[i][static_cast<size_t>(d)]) return false;
    }
  }
  return true;
}

Status CheckFinite(tf::OpKernelContext* ctx, const Runtime& runtime,
                   const std::string& name, const Signature& asked, int first) {
  const bool is_asked_for = runtime.options().check_numerics;
  const bool checks = RulesOf(asked.verb).finite_check != FiniteCheck::kNever;
  if (!is_asked_for || !checks) return Status::Ok();
  // Further inputs, such as splits, are no tensors of the call.
  const auto count = static_cast<int>(asked.shapes.size());
  for (int i = 0; i < count; ++i) {
    const tf::Tensor& input = ctx->input(first + i);
    if (!AllFiniteOnWire(asked.dtype, asked.wire_dtype, MutableData(input),
                         input.NumElements(), asked.prescale)) {
      return NotFinite(runtime.topology().rank, name, i, count);
    }
  }
  return Status::Ok();
}

Status RefuseScalars(const Signature& signature) {
  const char* const lacks = RulesOf(signature.verb).scalar_lacks;
  for (const Shape& shape : signature.shapes) {
    if (lacks == nullptr || !shape.empty()) continue;
    return FailedPrecondition(std::string(Name(signature.verb)) +
                              " of a scalar, which has no " + lacks +
                              "; reshape the tensor to [1]");
  }
  return Status::Ok();
}

void BindInputs(tf::OpKernelContext* ctx, int count, CollectiveCall* call) {
  for (int i = 0; i < count; ++i) {
    call->entry.inputs.push_back(MutableData(ctx->input(i)));
    call->tensors.push_back(ctx->input(i));
  }
}

Status BindReduced(tf::OpKernelContext* ctx, int index, CollectiveCall* call) {
  // The input is not kept as a tensor, because a second reference would rule
  // out forwarding.
  const void* const in = MutableData(ctx->input(index));
  Result<tf::Tensor> output = ForwardOrAllocateOutput(ctx, index);
  if (!output.ok()) return output.status();
  void* const out = MutableData(output.value());
  call->entry.inputs.push_back(in);
  call->entry.outputs.push_back(out);
  if (in != out) call->tensors.push_back(ctx->input(index));
  call->tensors.push_back(std::move(output.value()));
  return Status::Ok();
}

Status PassInputsOn(tf::OpKernelContext* ctx) {
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    ctx->set_output(i, ctx->input(i));
  }
  return Status::Ok();
}

TfStatus ReductionAttributes::Read(tf::OpKernelConstruction* ctx) {
  float prescale_factor, postscale_factor;
  std::string prescale, postscale;
  TF_RETURN_IF_ERROR(ctx->GetAttr("reduce_op", &reduce_op_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("prescale_factor", &prescale_factor));
  TF_RETURN_IF_ERROR(ctx->GetAttr("postscale_factor", &postscale_factor));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exact_prescale", &prescale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exact_postscale", &postscale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("wire_dtype", &wire_dtype_));
  const Result<double> before = ParseScale("prescale_factor", prescale);
  const Result<double> after = ParseScale("postscale_factor", postscale);
  scales_ = before.ok() ? after.status() : before.status();
  if (!scales_.ok()) return absl::OkStatus();
  prescale_ = before.value() * static_cast<double>(prescale_factor);
  postscale_ = after.value() * static_cast<double>(postscale_factor);
  return absl::OkStatus();
}

Status ReductionAttributes::Describe(Signature* signature) const {
  HVD_RETURN_IF_ERROR(scales_);
  if (reduce_op_ < 0 || reduce_op_ >= kReduceOpCount) {
    return InvalidArgument(
        "reduce_op " + std::to_string(reduce_op_) +
        " is not offered; use Average, Sum, Adasum, Min, Max or Product");
  }
  const auto reduce_op = static_cast<ReduceOp>(reduce_op_);
  if (reduce_op == ReduceOp::kAdasum) {
    HVD_RETURN_IF_ERROR(CheckAdasum(*signature));
  }
  signature->reduce_op = reduce_op;
  signature->prescale = prescale_;
  signature->postscale = postscale_;
  if (wire_dtype_ == "none") return Status::Ok();
  if (!IsFloating(signature->dtype)) {
    return InvalidArgument("wire_dtype " + Quoted(wire_dtype_) +
                           " compresses floating-point tensors only, not " +
                           Name(signature->dtype));
  }
  signature->wire_dtype =
      wire_dtype_ == "fp16" ? DataType::kFloat16 : DataType::kBfloat16;
  return Status::Ok();
}

Status SetScales(const EagerWords& words, Signature* signature) {
  const Result<double> before = ParseScale("prescale_factor", words.prescale);
  if (!before.ok()) return before.status();
  const Result<double> after = ParseScale("postscale_factor", words.postscale);
  if (!after.ok()) return after.status();
  signature->prescale = before.value();
  signature->postscale = after.value();
  return Status::Ok();
}

bool PassesAlone(MemoryKind memory, const Runtime& runtime,
                 const Signature& asked) {
  // This thread computes in host memory only.
  return memory == MemoryKind::kHost ||
         (!RulesOf(asked.verb).has_ids && !runtime.options().check_numerics &&
          asked.prescale == 1.0 && asked.postscale == 1.0 &&
          asked.wire_dtype == asked.dtype);
}

Status ReduceAlone(tf::OpKernelContext* ctx, const Signature& asked,
                   int first) {
  const int end = first + static_cast<int>(asked.shapes.size());
  const bool changes = asked.prescale != 1.0 || asked.postscale != 1.0 ||
                       asked.wire_dtype != asked.dtype;
  for (int i = first; i < end; ++i) {
    const tf::Tensor& input = ctx->input(i);
    if (!changes) {
      ctx->set_output(i, input);
      continue;
    }
    const Result<tf::Tensor> output = AllocateOutput(ctx, i, input.shape());
    if (!output.ok()) return output.status();
    AllreduceAlone(asked.dtype, asked.wire_dtype, asked.reduce_op,
                   MutableData(input), MutableData(output.value()),
                   input.NumElements(), asked.prescale, asked.postscale);
  }
  return Status::Ok();
}

}  // namespace hvd
