// SPDX-License-Identifier: Apache-2.0
// HorovodAlltoall: the op and its kernel.
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "adapter/collective_kernel.h"
#include "adapter/kernel_inputs.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"
#include "core/rows.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

TfStatus AlltoallShapes(InferenceContext* c) {
  ShapeHandle splits;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
  ShapeHandle output = c->UnknownShape();
  if (c->RankKnown(c->input(0)) && c->Rank(c->input(0)) > 0) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(0), 0, c->UnknownDim(), &output));
  }
  c->set_output(0, output);
  c->set_output(1, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

HVD_REGISTER_COLLECTIVE("HorovodAlltoall")
    .Attr("T: " HVD_ALL_TYPES)
    .Input("tensor: T")
    .Input("splits: int32")
    .Output("output: T")
    .Output("received_splits: int32")
    .SetShapeFn(AlltoallShapes)
    .Doc(
        "Sends rows to every rank, and gets rows from every rank."
        "\n\ntensor: Rows for rank 0, then for rank 1, and so on; the same on "
        "every rank but for values and first dimension."
        "\nsplits: How many rows go to each rank of the process set; empty: as "
        "many to each. Rows behind their sum go nowhere."
        "\noutput: The rows from rank 0, then from rank 1, and so on."
        "\nreceived_splits: How many rows came from each rank." HVD_COMMON_DOC);

std::string Text(const std::vector<int64_t>& numbers) {
  return ToString(Shape(numbers.begin(), numbers.end()));
}

// The rows that go to each rank.
Result<std::vector<int64_t>> ReadSplits(tf::OpKernelContext* ctx, int size) {
  const tf::Tensor& tensor = ctx->input(0);
  const tf::Tensor& input = ctx->input(1);
  const int64_t rows = tensor.dim_size(0);
  if (input.NumElements() == 0) {
    if (rows % size == 0) {
      return std::vector<int64_t>(static_cast<size_t>(size), rows / size);
    }
    return InvalidArgument(
        "alltoall without splits sends as many rows to each "
        "of " +
        std::to_string(size) + " ranks, but the tensor has " +
        std::to_string(rows) + " rows; pass splits=");
  }
  const auto values = input.flat<int32_t>();
  std::vector<int64_t> splits(values.data(), values.data() + values.size());
  if (splits.size() != static_cast<size_t>(size)) {
    return InvalidArgument("splits has " + std::to_string(splits.size()) +
                           " entries; pass one for each of the " +
                           std::to_string(size) + " ranks of the process set");
  }
  for (int64_t split : splits) {
    // Python has made it of what does not fit into 32 bits.
    if (split == INT32_MAX) {
      return InvalidArgument("splits " + Text(splits) + " has an entry above " +
                             std::to_string(INT32_MAX - 1) +
                             "; send fewer rows to a rank, of more bytes each");
    }
    if (split >= 0) continue;
    return InvalidArgument("splits " + Text(splits) +
                           " has a negative entry; pass numbers of rows");
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (sum > rows) {
    return InvalidArgument("splits " + Text(splits) + " adds up to " +
                           std::to_string(sum) + ", but the tensor has only " +
                           std::to_string(rows) + " rows");
  }
  return splits;
}

// Sets output 1.
Status SetReceivedSplits(tf::OpKernelContext* ctx,
                         const std::vector<int64_t>& rows) {
  const Result<tf::Tensor> output = AllocateLateOutput(
      ctx, 1, tf::TensorShape({static_cast<int64_t>(rows.size())}));
  if (!output.ok()) return output.status();
  auto* const numbers = static_cast<int32_t*>(MutableData(output.value()));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > INT32_MAX) {
      return InvalidArgument("received_splits cannot hold " +
                             std::to_string(rows[i]) +
                             " rows, because it is int32; send fewer at a "
                             "time");
    }
    numbers[i] = static_cast<int32_t>(rows[i]);
  }
  return Status::Ok();
}

class AlltoallKernel : public CollectiveKernel {
 public:
  explicit AlltoallKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {}

 protected:
  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& set,
                  Signature* signature) override {
    signature->verb = Verb::kAlltoall;
    HVD_RETURN_IF_ERROR(DescribeInputs(ctx, 1, signature));
    HVD_RETURN_IF_ERROR(RefuseScalars(*signature));
    return ReadSplits(ctx, static_cast<int>(set.ranks.size())).status();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& set,
              CollectiveCall* call) override {
    Result<std::vector<int64_t>> splits =
        ReadSplits(ctx, static_cast<int>(set.ranks.size()));
    if (!splits.ok()) return splits.status();
    BindInputs(ctx, 1, call);
    call->entry.splits.push_back(std::move(splits.value()));
    call->entry.allocate = [ctx, call](const std::vector<Shape>& shapes,
                                       RankCountsSpan rows,
                                       std::vector<void*>* outputs) -> Status {
      const Result<tf::TensorShape> shape = ToTf(shapes[0]);
      if (!shape.ok()) return shape.status();
      Result<tf::Tensor> output = AllocateLateOutput(ctx, 0, shape.value());
      if (!output.ok()) return output.status();
      HVD_RETURN_IF_ERROR(SetReceivedSplits(ctx, rows[0]));
      *outputs = {MutableData(output.value())};
      call->tensors.push_back(std::move(output.value()));
      return Status::Ok();
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    const Result<std::vector<int64_t>> splits = ReadSplits(ctx, 1);
    if (!splits.ok()) return splits.status();
    ctx->set_output(0, ctx->input(0).Slice(0, splits.value()[0]));
    return SetReceivedSplits(ctx, splits.value());
  }
};

HVD_REGISTER_KERNELS("HorovodAlltoall", AlltoallKernel, "splits",
                     "received_splits");

}  // namespace
}  // namespace hvd
