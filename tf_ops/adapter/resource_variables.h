// SPDX-License-Identifier: Apache-2.0
// Reads and replaces resource variables that are inputs of a kernel.
#ifndef HVD_ADAPTER_RESOURCE_VARIABLES_H_
#define HVD_ADAPTER_RESOURCE_VARIABLES_H_

#include <functional>
#include <string>

#include "adapter/tf_compat.h"
#include "core/status.h"

namespace hvd {

// Gives a variable a new value. Any thread, before the kernel's done.
using VariableStore = std::function<void(const tensorflow::Tensor& value)>;

// The value of the variable at input `index`. It shares the variable's memory.
// A value that is stored later does not change it.
[[nodiscard]] Result<tensorflow::Tensor> ReadVariable(
    tensorflow::OpKernelContext* ctx, int index);

// The function that replaces the variable's value by another one of the same
// dtype.
[[nodiscard]] Result<VariableStore> MakeVariableStore(
    tensorflow::OpKernelContext* ctx, int index);

[[nodiscard]] Status UninitialisedVariable(const std::string& name);

}  // namespace hvd

#endif  // HVD_ADAPTER_RESOURCE_VARIABLES_H_
