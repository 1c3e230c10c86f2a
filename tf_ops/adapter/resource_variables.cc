// SPDX-License-Identifier: Apache-2.0
// Finds variables by their handles, and takes their locks.
#include "adapter/resource_variables.h"

#include <memory>
#include <utility>

#include "core/quoted.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

Status Find(tf::OpKernelContext* ctx, int index,
            tf::core::RefCountPtr<tf::Var>* variable) {
  const tf::ResourceHandle& handle = tf::HandleFromInput(ctx, index);
  if (tf::LookupResource(ctx, handle, variable).ok()) return Status::Ok();
  return UninitialisedVariable(handle.name());
}

}  // namespace

Result<tf::Tensor> ReadVariable(tf::OpKernelContext* ctx, int index) {
  tf::core::RefCountPtr<tf::Var> variable;
  HVD_RETURN_IF_ERROR(Find(ctx, index, &variable));
  tf::tf_shared_lock lock(*variable->mu());
  const tf::Tensor& value = *variable->tensor();
  if (!variable->is_initialized || !value.IsInitialized()) {
    return UninitialisedVariable(tf::HandleFromInput(ctx, index).name());
  }
  return value;
}

Result<VariableStore> MakeVariableStore(tf::OpKernelContext* ctx, int index) {
  tf::core::RefCountPtr<tf::Var> found;
  HVD_RETURN_IF_ERROR(Find(ctx, index, &found));
  // Shared, because std::function must be copyable.
  auto variable =
      std::make_shared<tf::core::RefCountPtr<tf::Var>>(std::move(found));
  return VariableStore([variable](const tf::Tensor& value) {
    tf::mutex_lock lock(*(*variable)->mu());
    *(*variable)->tensor() = value;
    (*variable)->is_initialized = true;
  });
}

Status UninitialisedVariable(const std::string& name) {
  return FailedPrecondition(
      "variable " + Quoted(name) +
      " has no value yet; initialise it before it is broadcast");
}

}  // namespace hvd
