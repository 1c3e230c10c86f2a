// SPDX-License-Identifier: Apache-2.0
// BundledKernel: what the kernels that make several calls have in common.
#ifndef HVD_ADAPTER_BUNDLED_KERNEL_H_
#define HVD_ADAPTER_BUNDLED_KERNEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapter/bundle.h"
#include "adapter/collective_call.h"
#include "adapter/kept_calls.h"
#include "adapter/kernel_inputs.h"
#include "adapter/tf_compat.h"
#include "core/request.h"
#include "core/runtime.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Each call is one for the other ranks. See Bundle. The verb's part is that of
// a CollectiveKernel, for the call at a place of the bundle.
//
// TensorFlow owns it. It may run several times at once.
class BundledKernel : public tensorflow::AsyncOpKernel {
 public:
  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final;

 protected:
  // A call has so many inputs. The tensor that it reduces is the kernel's input
  // of the call's place.
  BundledKernel(tensorflow::OpKernelConstruction* ctx, int inputs_of_a_call);

  virtual Status Describe(tensorflow::OpKernelContext* ctx, int place,
                          Signature* signature) const = 0;
  virtual Status Bind(tensorflow::OpKernelContext* ctx, int place,
                      CollectiveCall* call) const = 0;
  virtual Status ComputeAlone(tensorflow::OpKernelContext* ctx, int place,
                              const Signature& signature) const = 0;

  // Calls bind(place) for each call, from any thread, and waits for them.
  virtual void BindEach(tensorflow::OpKernelContext* ctx,
                        const std::function<void(int)>& bind) const;

  // Whether signatures depend on nothing but the inputs' shapes.
  virtual bool FollowsInputs() const { return true; }

  int call_count() const { return static_cast<int>(names_.size()); }
  const ReductionAttributes& reduction() const { return reduction_; }

 private:
  static Bundle::Call& CallOf(Bundle* bundle, int place) {
    return bundle->calls()[static_cast<size_t>(place)];
  }

  void DescribeCall(tensorflow::OpKernelContext* ctx, int place,
                    Bundle* bundle) const;
  bool AllPassAlone(const Runtime& runtime, Bundle& bundle) const;
  Status ComputeAllAlone(tensorflow::OpKernelContext* ctx,
                         const Runtime& runtime, Bundle* bundle) const;
  // Sets the buffers of described calls.
  void BindAll(tensorflow::OpKernelContext* ctx, Bundle* bundle) const;

  const MemoryKind memory_;
  std::vector<std::string> names_;
  std::vector<std::string> nodes_;
  int process_set_id_ = 0;
  ReductionAttributes reduction_;
  const std::shared_ptr<KeptCalls<Bundle>> bundles_ =
      std::make_shared<KeptCalls<Bundle>>();
};

}  // namespace hvd

// The attributes that only bundles have.
#define HVD_REGISTER_BUNDLE(op)           \
  HVD_REGISTER_REDUCTION(op)              \
      .Attr("T: " HVD_REDUCIBLE_TYPES)    \
      .Attr("num_tensors: int >= 2")      \
      .Attr("tensor_names: list(string)") \
      .Attr("nodes: list(string)")
#define HVD_BUNDLE_DOC                                       \
  "\nnum_tensors: How many."                                 \
  "\ntensor_names: The names that ranks match each call by." \
  "\nnodes: The nodes that there were." HVD_REDUCE_DOC HVD_COMMON_DOC

#endif  // HVD_ADAPTER_BUNDLED_KERNEL_H_
