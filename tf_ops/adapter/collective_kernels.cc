// SPDX-License-Identifier: Apache-2.0
// The kernels of the data verbs: what each asks for, and its buffers.
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "adapter/collective_kernel.h"
#include "adapter/tf_bridge.h"
#include "core/decimal.h"
#include "cpu/elementwise.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Scales are decimal text, because TensorFlow's float attributes have only 24
// bits.
Result<double> ParseScale(const char* attribute, const std::string& text) {
  const std::optional<double> value = ParseDecimal(text);
  if (!value.has_value() || !std::isfinite(*value)) {
    return InvalidArgument(std::string(attribute) + " \"" + text +
                           "\" is not a finite number");
  }
  return *value;
}

// Fills in the dtype of the inputs, which is one for all, and their shapes.
Status DescribeInputs(tf::OpKernelContext* ctx, Signature* signature) {
  const Result<DataType> dtype = ToCore(ctx->input_dtype(0));
  if (!dtype.ok()) return dtype.status();
  signature->dtype = dtype.value();
  signature->wire_dtype = dtype.value();
  signature->shapes.reserve(static_cast<size_t>(ctx->num_inputs()));
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    signature->shapes.push_back(ToCore(ctx->input(i).shape()));
  }
  return Status::Ok();
}

// Sets outputs that share the inputs' memory. There is nothing to compute.
Status PassInputsOn(tf::OpKernelContext* ctx) {
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    ctx->set_output(i, ctx->input(i));
  }
  return Status::Ok();
}

// ---- allreduce -------------------------------------------------------------

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    std::string prescale, postscale;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reduce_op", &reduce_op_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("prescale_factor", &prescale));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("postscale_factor", &postscale));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("wire_dtype", &wire_dtype_));
    // The call reports an error, so that the peers hear of it.
    attributes_ = ReadScales(prescale, postscale);
  }

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kAllreduce;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, signature));
    HVD_RETURN_IF_ERROR(attributes_);
    const auto reduce_op = static_cast<ReduceOp>(reduce_op_);
    if (reduce_op_ < 0 || reduce_op_ > 255 || !IsValid(reduce_op)) {
      return InvalidArgument(
          "reduce_op " + std::to_string(reduce_op_) +
          " is not offered; use Average, Sum, Min, Max or Product");
    }
    signature->reduce_op = reduce_op;
    signature->prescale = prescale_;
    signature->postscale = postscale_;
    if (wire_dtype_ != "none") {
      if (!IsFloating(signature->dtype)) {
        return InvalidArgument("wire_dtype \"" + wire_dtype_ +
                               "\" compresses floating-point tensors only, "
                               "not " +
                               Name(signature->dtype));
      }
      signature->wire_dtype =
          wire_dtype_ == "fp16" ? DataType::kFloat16 : DataType::kBfloat16;
    }
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      // It is not kept as a tensor, because a second reference would rule out
      // forwarding.
      const void* const in = MutableData(ctx->input(i));
      Result<tf::Tensor> output = ForwardOrAllocateOutput(ctx, i);
      if (!output.ok()) return output.status();
      void* const out = MutableData(output.value());
      call->entry.inputs.push_back(in);
      call->entry.outputs.push_back(out);
      if (in != out) call->tensors.push_back(ctx->input(i));
      call->tensors.push_back(std::move(output.value()));
    }
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx,
                      const Signature& asked) override {
    if (asked.prescale == 1.0 && asked.postscale == 1.0 &&
        asked.wire_dtype == asked.dtype) {
      return PassInputsOn(ctx);
    }
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const tf::Tensor& input = ctx->input(i);
      const Result<tf::Tensor> output = AllocateOutput(ctx, i, input.shape());
      if (!output.ok()) return output.status();
      AllreduceAlone(asked.dtype, asked.wire_dtype, asked.reduce_op,
                     MutableData(input), MutableData(output.value()),
                     input.NumElements(), asked.prescale, asked.postscale);
    }
    return Status::Ok();
  }

 private:
  Status ReadScales(const std::string& prescale, const std::string& postscale) {
    const Result<double> before = ParseScale("prescale_factor", prescale);
    if (!before.ok()) return before.status();
    const Result<double> after = ParseScale("postscale_factor", postscale);
    if (!after.ok()) return after.status();
    prescale_ = before.value();
    postscale_ = after.value();
    return Status::Ok();
  }

  int reduce_op_ = 0;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string wire_dtype_;
  Status attributes_;
};

// ---- allgather -------------------------------------------------------------

class AllgatherKernel : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {}

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
                  Signature* signature) override {
    signature->verb = Verb::kAllgather;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, signature));
    for (const Shape& shape : signature->shapes) {
      if (shape.empty()) {
        return FailedPrecondition(
            "allgather of a scalar: it concatenates along the first dimension,"
            " which a scalar has not; reshape the tensor to [1]");
      }
    }
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& /*set*/,
              CollectiveCall* call) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      call->entry.inputs.push_back(MutableData(ctx->input(i)));
      call->tensors.push_back(ctx->input(i));
    }
    call->entry.allocate = [ctx, call](const std::vector<Shape>& shapes,
                                       const RankCounts& /*rows*/,
                                       std::vector<void*>* outputs) -> Status {
      outputs->clear();
      for (size_t i = 0; i < shapes.size(); ++i) {
        const Result<tf::TensorShape> shape = ToTf(shapes[i]);
        if (!shape.ok()) return shape.status();
        Result<tf::Tensor> output =
            AllocateOutput(ctx, static_cast<int>(i), shape.value());
        if (!output.ok()) return output.status();
        outputs->push_back(MutableData(output.value()));
        call->tensors.push_back(std::move(output.value()));
      }
      return Status::Ok();
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    return PassInputsOn(ctx);
  }
};

// ---- broadcast -------------------------------------------------------------

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_rank_));
  }

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& set,
                  Signature* signature) override {
    signature->verb = Verb::kBroadcast;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, signature));
    const Result<int> root = RootWithin(set, process_set_id(), root_rank_);
    if (!root.ok()) return root.status();
    signature->root = root.value();
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& set,
              CollectiveCall* call) override {
    const tf::Tensor& input = ctx->input(0);
    call->entry.inputs.push_back(MutableData(input));
    call->tensors.push_back(input);
    if (set.rank == call->entry.request.signature.root) {
      // The root already has the value, so its output shares the memory.
      call->entry.outputs.push_back(MutableData(input));
      return PassInputsOn(ctx);
    }
    Result<tf::Tensor> output = AllocateOutput(ctx, 0, input.shape());
    if (!output.ok()) return output.status();
    call->entry.outputs.push_back(MutableData(output.value()));
    call->tensors.push_back(std::move(output.value()));
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    return PassInputsOn(ctx);
  }

 private:
  int root_rank_ = 0;
};

#define HVD_REGISTER(op, kernel) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tf::DEVICE_CPU), kernel)

HVD_REGISTER("HorovodAllreduce", AllreduceKernel);
HVD_REGISTER("HorovodGroupedAllreduce", AllreduceKernel);
HVD_REGISTER("HorovodAllgather", AllgatherKernel);
HVD_REGISTER("HorovodGroupedAllgather", AllgatherKernel);
HVD_REGISTER("HorovodBroadcast", BroadcastKernel);

}  // namespace
}  // namespace hvd
