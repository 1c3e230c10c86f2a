// SPDX-License-Identifier: Apache-2.0
// One kernel that broadcasts many variables, each under a name of its own.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "adapter/collective_call.h"
#include "adapter/global_runtime.h"
#include "adapter/matched_names.h"
#include "adapter/op_definitions.h"
#include "adapter/resource_variables.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// The calls of one run of the kernel. The run ends when all of them have ended.
class PendingCalls {
 public:
  PendingCalls(tf::OpKernelContext* ctx, size_t count,
               tf::AsyncOpKernel::DoneCallback done)
      : ctx_(ctx), missing_(count), done_(std::move(done)) {}

  // Call `index` has ended. The user sees the error of the first variable that
  // failed, in the order of the variables. So it is the same on every rank.
  void Finish(size_t index, const TfStatus& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!status.ok() && (status_.ok() || index < failed_)) {
        failed_ = index;
        status_ = status;
      }
      if (--missing_ > 0) return;
    }
    if (!status_.ok()) ctx_->SetStatus(status_);
    done_();
  }

 private:
  tf::OpKernelContext* const ctx_;
  std::mutex mutex_;
  size_t missing_;
  size_t failed_ = 0;
  TfStatus status_;
  const tf::AsyncOpKernel::DoneCallback done_;
};

// The call of one variable.
class VariableCall : public CollectiveCall {
 public:
  VariableCall(std::shared_ptr<PendingCalls> pending, size_t index)
      : pending_(std::move(pending)), index_(index) {}

 private:
  void End(const TfStatus& status) override {
    const std::shared_ptr<PendingCalls> pending = std::move(pending_);
    pending->Finish(index_, status);
  }

  std::shared_ptr<PendingCalls> pending_;
  const size_t index_;
};

class BroadcastVariablesKernel : public tf::AsyncOpKernel {
 public:
  explicit BroadcastVariablesKernel(tf::OpKernelConstruction* ctx)
      : tf::AsyncOpKernel(ctx), memory_(MemoryOf(ctx->device_type())) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_rank_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("tensor_names", &names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
    OP_REQUIRES(ctx, names_.size() == static_cast<size_t>(ctx->num_inputs()),
                TfStatus(absl::StatusCode::kInvalidArgument,
                         "tensor_names must have one name per variable"));
    names_ = MatchedNames(ctx, std::move(names_));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    std::shared_ptr<Runtime> runtime = GetRuntime();
    const Result<ProcessSetPtr> set =
        FindMemberSet(runtime.get(), process_set_id_);
    OP_REQUIRES_OK_ASYNC(ctx, ToTf(Named(names_[0], set.status())), done);
    if (set.value()->ranks.size() == 1) {
      done();
      return;
    }
    // After the last SubmitCall the step may be over and this kernel destroyed.
    const size_t count = names_.size();
    const CallSite site = CallSiteOf(ctx);
    auto pending = std::make_shared<PendingCalls>(ctx, count, std::move(done));
    // Why a variable had none: TensorFlow waits for seconds before it says so.
    Status memory;
    for (size_t i = 0; i < count; ++i) {
      auto call = std::make_shared<VariableCall>(pending, i);
      Describe(ctx, *set.value(), static_cast<int>(i), call.get(), &memory);
      SubmitCall(runtime, *set.value(), site, names_[i], std::move(call));
    }
  }

 private:
  void Describe(tf::OpKernelContext* ctx, const ProcessSet& set, int index,
                CollectiveCall* call, Status* memory) const {
    Request& request = call->entry.request;
    request.signature.verb = Verb::kBroadcast;
    request.signature.memory = memory_;
    request.error = Fill(ctx, set, index, call, memory);
    if (!request.error.ok()) call->DropBuffers();
  }

  // `memory`: why an earlier variable had none. Then this one does not ask.
  Status Fill(tf::OpKernelContext* ctx, const ProcessSet& set, int index,
              CollectiveCall* call, Status* memory) const {
    Signature& signature = call->entry.request.signature;
    Result<tf::Tensor> value = ReadVariable(ctx, index);
    if (!value.ok()) return value.status();
    const Result<DataType> dtype = ToCore(value.value().dtype());
    if (!dtype.ok()) return dtype.status();
    signature.dtype = signature.wire_dtype = dtype.value();
    signature.shapes = {ToCore(value.value().shape())};
    const Result<int> root = RootWithin(set, root_rank_);
    if (!root.ok()) return root.status();
    signature.root = root.value();
    if (set.rank != signature.root) {
      HVD_RETURN_IF_ERROR(*memory);
      value =
          AllocatePersistent(ctx, value.value().dtype(), value.value().shape());
      if (!value.ok()) return *memory = value.status();
      Result<VariableStore> store = MakeVariableStore(ctx, index);
      if (!store.ok()) return store.status();
      call->on_success = [store = std::move(store.value()),
                          received = value.value()] {
        store(received);
        return Status::Ok();
      };
    }
    call->entry.inputs = {MutableData(value.value())};
    call->entry.outputs = {MutableData(value.value())};
    call->tensors.push_back(std::move(value.value()));
    Result<std::shared_ptr<const void>> ready = ReadyOf(ctx, memory_);
    if (ready.ok()) call->entry.ready = std::move(ready.value());
    return ready.status();
  }

  const MemoryKind memory_;
  int root_rank_ = 0;
  int process_set_id_ = 0;
  std::vector<std::string> names_;
};

REGISTER_OP("HorovodBroadcastVariables")
    .Attr("num_variables: int >= 1")
    .Attr("root_rank: int")
    .Attr("tensor_names: list(string)")
    .Attr("process_set_id: int = 0")
    .Input("resources: num_variables * resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(
        "Gives variables of any dtypes the values that they have on the root, "
        "each as a collective of its own."
        "\n\nresources: Initialised variables."
        "\nnum_variables: How many."
        "\nroot_rank: A rank of the job, within the process set."
        "\ntensor_names: One per variable: what the ranks match by."
        "\nprocess_set_id: The set; 0 is all ranks.");

HVD_REGISTER_KERNELS("HorovodBroadcastVariables", BroadcastVariablesKernel,
                     "resources");

}  // namespace
}  // namespace hvd
