// SPDX-License-Identifier: Apache-2.0
// HorovodJoin: the op and its kernel.
#include <memory>
#include <utility>

#include "adapter/collective_call.h"
#include "adapter/global_runtime.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

REGISTER_OP("HorovodJoin")
    .Attr("process_set_id: int = 0")
    .Output("last_rank: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "Says that this rank has no more tensors, and waits until every rank "
        "of a process set has. Until then calls of the other ranks go on "
        "without it."
        "\n\nlast_rank: The rank of the job that came last."
        "\nprocess_set_id: The ranks that take part; 0 is all of them.");

// One join of a kernel. The runtime keeps it alive until it is done.
struct KernelJoin {
  tf::OpKernelContext* ctx = nullptr;
  tf::AsyncOpKernel::DoneCallback done;
  ProcessSetPtr set;
  JoinCall call;
  std::unique_ptr<StepCancellation> cancellation;

  void End(const Status& status, int last_rank) {
    cancellation->Finish();
    Status result = status;
    if (result.ok()) {
      const Result<tf::Tensor> output =
          AllocateOutput(ctx, 0, tf::TensorShape({}));
      result = output.status();
      if (output.ok()) {
        *static_cast<int32_t*>(MutableData(output.value())) =
            set->ranks[static_cast<size_t>(last_rank)];
      }
    }
    if (!result.ok()) ctx->SetStatus(ToTf(Named("join", result)));
    const tf::AsyncOpKernel::DoneCallback finished = std::move(done);
    finished();
  }
};

class JoinKernel : public tf::AsyncOpKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* ctx) : tf::AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    std::shared_ptr<Runtime> runtime = GetRuntime();
    const Result<ProcessSetPtr> set =
        FindMemberSet(runtime.get(), process_set_id_);
    OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named("join", set.status())), done);
    const auto join = std::make_shared<KernelJoin>();
    join->ctx = ctx;
    join->done = std::move(done);
    join->set = set.value();
    join->call.ticket = runtime->NewTicket();
    join->cancellation = std::make_unique<StepCancellation>(
        runtime, join->set->serial, join->call.ticket, CallSiteOf(ctx));
    if (join->set->ranks.size() == 1) return join->End(Status::Ok(), 0);
    if (const Status why = join->cancellation->Register(); !why.ok()) {
      return join->End(why, -1);
    }
    // The code that runs `done` holds the call, and so the join.
    join->call.done = [raw = join.get()](const Status& status, int last_rank) {
      raw->End(status, last_rank);
    };
    runtime->Join(*join->set, JoinCallPtr(join, &join->call));
    join->cancellation->Enqueued(runtime.get());
  }

 private:
  int process_set_id_ = 0;
};

HVD_REGISTER_HOST_KERNELS("HorovodJoin", JoinKernel, "last_rank");

}  // namespace
}  // namespace hvd
