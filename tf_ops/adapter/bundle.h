// SPDX-License-Identifier: Apache-2.0
// Bundle: the calls of one run of a kernel that makes several.
#ifndef HVD_ADAPTER_BUNDLE_H_
#define HVD_ADAPTER_BUNDLE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapter/collective_call.h"
#include "adapter/described_for.h"
#include "adapter/tf_compat.h"
#include "core/runtime.h"

namespace hvd {

// The ranks know the calls one by one. TensorFlow knows one run, which ends
// when all calls have. The first that fails withdraws the others.
//
// Owners: a kernel (KeptCalls), and the calls that have not ended. Between runs
// the requests and their numbers stay.
class Bundle {
 public:
  class Call : public CollectiveCall {
   public:
    // Whether the request is that of an earlier run with these inputs' shapes.
    bool is_described = false;
    // The request has an error, or means nothing. It is made anew.
    void ForgetRequest();

   private:
    friend class Bundle;
    void End(const TfStatus& status) override;

    Bundle* bundle_ = nullptr;
    const std::string* node_ = nullptr;  // whose call it is
  };

  // A run begins, with a call for each of `nodes`, which the kernel keeps.
  void Begin(tensorflow::OpKernelContext* ctx,
             const std::vector<std::string>& nodes,
             const std::shared_ptr<Runtime>& runtime, int set_serial);

  // Ends this run. To be set before the first call is submitted.
  void set_done(tensorflow::AsyncOpKernel::DoneCallback done) {
    done_ = std::move(done);
  }

  std::vector<Call>& calls() { return calls_; }

  // For KeptCalls, when no call is left.
  void Reset();

 private:
  void Ended(const Call& call, const TfStatus& status);
  void Fail(const Call& failed, const TfStatus& status);

  std::vector<Call> calls_;
  DescribedFor described_for_;  // of the calls that are described

  tensorflow::OpKernelContext* ctx_ = nullptr;
  tensorflow::AsyncOpKernel::DoneCallback done_;
  std::atomic<size_t> open_{0};  // calls that have not ended
  std::mutex mutex_;             // guards first_error_
  TfStatus first_error_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_BUNDLE_H_
