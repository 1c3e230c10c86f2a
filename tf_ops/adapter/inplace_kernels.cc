// SPDX-License-Identifier: Apache-2.0
// Broadcast of variables: they get the values that they have on the root.
//
// A rank receives into fresh memory, and then gives that to the variable under
// its lock. So a reader that still shares the old memory keeps the old value.
// No lock is held while this rank waits for peers.
#include <string>
#include <utility>
#include <vector>

#include "adapter/collective_kernel.h"
#include "adapter/op_definitions.h"
#include "adapter/resource_variables.h"
#include "adapter/tf_bridge.h"
#include "core/quoted.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Broadcasts the variables of one call. Derived classes know the kind of
// variable.
class VariableBroadcastKernel : public CollectiveKernel {
 public:
  explicit VariableBroadcastKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_rank_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

 protected:
  // The value of variable `index`. It shares the variable's memory.
  virtual Result<tf::Tensor> Load(tf::OpKernelContext* ctx, int index) = 0;
  // The function that gives variable `index` a new value. Any thread may call
  // it, before the kernel's done.
  virtual Result<VariableStore> MakeStore(tf::OpKernelContext* ctx,
                                          int index) = 0;
  // Sets outputs, if the op has any.
  virtual void SetOutputs(tf::OpKernelContext* /*ctx*/) {}

  tf::DataType dtype() const { return dtype_; }

  // The shapes are those of the variables.
  bool FollowsInputs() const override { return false; }

  Status Describe(tf::OpKernelContext* ctx, const ProcessSet& set,
                  Signature* signature) override {
    signature->verb = Verb::kBroadcast;
    const Result<DataType> dtype = ToCore(dtype_);
    if (!dtype.ok()) return dtype.status();
    signature->dtype = dtype.value();
    signature->wire_dtype = dtype.value();
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Result<tf::Tensor> value = Load(ctx, i);
      if (!value.ok()) return value.status();
      signature->shapes.push_back(ToCore(value.value().shape()));
    }
    const Result<int> root = RootWithin(set, root_rank_);
    if (!root.ok()) return root.status();
    signature->root = root.value();
    return Status::Ok();
  }

  Status Bind(tf::OpKernelContext* ctx, const ProcessSet& set,
              CollectiveCall* call) override {
    const Signature& signature = call->entry.request.signature;
    const bool is_root = set.rank == signature.root;
    std::vector<VariableStore> stores;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      Result<tf::Tensor> value =
          is_root ? Load(ctx, i) : Allocate(ctx, signature, i);
      if (!value.ok()) return value.status();
      if (ToCore(value.value().shape()) !=
          signature.shapes[static_cast<size_t>(i)]) {
        return InvalidArgument("variable " + std::to_string(i) +
                               " changed its shape while it was broadcast");
      }
      call->entry.inputs.push_back(MutableData(value.value()));
      call->entry.outputs.push_back(MutableData(value.value()));
      call->tensors.push_back(std::move(value.value()));
      if (is_root) continue;
      Result<VariableStore> store = MakeStore(ctx, i);
      if (!store.ok()) return store.status();
      stores.push_back(std::move(store.value()));
    }
    SetOutputs(ctx);
    call->on_success = [stores = std::move(stores), call] {
      for (size_t i = 0; i < stores.size(); ++i) stores[i](call->tensors[i]);
      return Status::Ok();
    };
    return Status::Ok();
  }

  Status ComputeAlone(tf::OpKernelContext* ctx, const Signature&) override {
    SetOutputs(ctx);
    return Status::Ok();
  }

 private:
  Result<tf::Tensor> Allocate(tf::OpKernelContext* ctx,
                              const Signature& signature, int index) const {
    const Result<tf::TensorShape> shape =
        ToTf(signature.shapes[static_cast<size_t>(index)]);
    if (!shape.ok()) return shape.status();
    return AllocatePersistent(ctx, dtype_, shape.value());
  }

  int root_rank_ = 0;
  tf::DataType dtype_ = tf::DT_INVALID;
};

class ResourceBroadcastKernel : public VariableBroadcastKernel {
 public:
  using VariableBroadcastKernel::VariableBroadcastKernel;

 protected:
  Result<tf::Tensor> Load(tf::OpKernelContext* ctx, int index) override {
    Result<tf::Tensor> value = ReadVariable(ctx, index);
    if (!value.ok() || value.value().dtype() == dtype()) return value;
    return InvalidArgument("variable " +
                           Quoted(tf::HandleFromInput(ctx, index).name()) +
                           " is " + tf::DataTypeString(value.value().dtype()) +
                           ", not " + tf::DataTypeString(dtype()));
  }

  Result<VariableStore> MakeStore(tf::OpKernelContext* ctx,
                                  int index) override {
    return MakeVariableStore(ctx, index);
  }
};

class ReferenceBroadcastKernel : public VariableBroadcastKernel {
 public:
  using VariableBroadcastKernel::VariableBroadcastKernel;

 protected:
  Result<tf::Tensor> Load(tf::OpKernelContext* ctx, int index) override {
    tf::Tensor value = ctx->mutable_input(index, /*lock_held=*/false);
    if (!value.IsInitialized()) {
      return UninitialisedVariable(ctx->op_kernel().requested_input(index));
    }
    return value;
  }

  Result<VariableStore> MakeStore(tf::OpKernelContext* ctx,
                                  int index) override {
    return VariableStore([ctx, index](const tf::Tensor& value) {
      ctx->replace_ref_input(index, value, /*lock_held=*/false);
    });
  }

  void SetOutputs(tf::OpKernelContext* ctx) override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      ctx->forward_ref_input_to_ref_output(i, i);
    }
  }
};

HVD_REGISTER_COLLECTIVE("HorovodBroadcastInplaceResource")
    .Attr("T: " HVD_ALL_TYPES " = DT_FLOAT")
    .Attr("num_variables: int >= 1")
    .Attr("variable_names: list(string) = []")
    .Attr("root_rank: int")
    .Input("resources: num_variables * resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(
        "Gives variables the values that they have on the root."
        "\n\nresources: Initialised variables of dtype T, of the same shapes "
        "on every rank."
        "\nT: The variables' dtype. Horovod's graphs do not have it."
        "\nnum_variables: How many."
        "\nvariable_names: Of Horovod's graphs. It has no effect."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

HVD_REGISTER_COLLECTIVE("HorovodBroadcastInplace")
    .Attr("T: " HVD_ALL_TYPES)
    .Attr("num_variables: int >= 1")
    .Attr("variable_names: list(string) = []")
    .Attr("root_rank: int")
    .Input("variables: Ref(num_variables * T)")
    .Output("outputs: Ref(num_variables * T)")
    .SetIsStateful()
    // So that the kernel sees an uninitialised variable, and the peers hear of
    // it.
    .SetAllowsUninitializedInput()
    .SetShapeFn(SameShapes)
    .Doc(
        "Gives reference variables the values that they have on the root."
        "\n\nvariables: Initialised, of the same shapes on every rank."
        "\noutputs: The same variables, after the broadcast."
        "\nnum_variables: How many."
        "\nvariable_names: Of Horovod's graphs. It has no effect."
        "\nroot_rank: A rank of the job, within the process "
        "set." HVD_COMMON_DOC);

HVD_REGISTER_KERNELS("HorovodBroadcastInplaceResource", ResourceBroadcastKernel,
                     "resources");
HVD_REGISTER_KERNELS("HorovodBroadcastInplace", ReferenceBroadcastKernel);

}  // namespace
}  // namespace hvd
