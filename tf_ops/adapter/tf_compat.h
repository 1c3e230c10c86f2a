// SPDX-License-Identifier: Apache-2.0
// TensorFlow's headers, and every difference between its versions.
//
// Tried on 2.15.1 and 2.21.0. These are the differences:
// - tensorflow::Status is absl::Status since 2.13, but only newer headers have
//   that name in their signatures. Here it is TfStatus, made with absl's
//   headers.
// - 2.21's version.h does not define TF_MAJOR_VERSION. Nothing here uses it.
// - absl::string_view replaced tensorflow::StringChunk, the same type. Nothing
//   here names the latter.
// - The cancellation manager moved from tsl/ to xla/tsl/. It is included
//   through tensorflow/core/framework/, which forwards.
#ifndef HVD_ADAPTER_TF_COMPAT_H_
#define HVD_ADAPTER_TF_COMPAT_H_

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/log_memory.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace hvd {

using TfStatus = absl::Status;
static_assert(
    std::is_same_v<
        std::decay_t<
            decltype(std::declval<tensorflow::OpKernelContext&>().status())>,
        absl::Status>,
    "hvd_tf needs TensorFlow 2.13 or newer");

}  // namespace hvd

#endif  // HVD_ADAPTER_TF_COMPAT_H_
