// SPDX-License-Identifier: Apache-2.0
// Resource variables that a kernel has among its inputs: read and replaced.
#ifndef HVD_ADAPTER_RESOURCE_VARIABLES_H_
#define HVD_ADAPTER_RESOURCE_VARIABLES_H_

#include <functional>
#include <string>

#include "adapter/tf_compat.h"
#include "core/status.h"

namespace hvd {

// Gives a variable a new value; from any thread, before the kernel's done.
using VariableStore = std::function<void(const tensorflow::Tensor& value)>;

// The value of the variable at input `index`, sharing its memory: a value that
// is stored later does not change it.
[[nodiscard]] Result<tensorflow::Tensor> ReadVariable(
    tensorflow::OpKernelContext* ctx, int index);

// Replaces its value by another one of the same dtype.
[[nodiscard]] Result<VariableStore> MakeVariableStore(
    tensorflow::OpKernelContext* ctx, int index);

[[nodiscard]] Status UninitialisedVariable(const std::string& name);

}  // namespace hvd

#endif  // HVD_ADAPTER_RESOURCE_VARIABLES_H_
