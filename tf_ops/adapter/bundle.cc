// SPDX-License-Identifier: Apache-2.0
// Begins a run of several calls, and ends it with the last of them.
#include "adapter/bundle.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// The same error with the node that the user has written. TensorFlow adds the
// bundle's node by itself, and says where in the program a node comes from.
TfStatus WithNode(const TfStatus& status, const std::string& node) {
  TfStatus result(status.code(), absl::StrCat(status.message(),
                                              "\n\t [[{{node ", node, "}}]]"));
  status.ForEachPayload(
      [&result](absl::string_view url, const absl::Cord& payload) {
        result.SetPayload(url, payload);
      });
  return result;
}

}  // namespace

void Bundle::Call::ForgetRequest() {
  entry.request = {};
  entry.signature_number = 0;
  is_described = false;
}

void Bundle::Call::End(const TfStatus& status) {
  bundle_->Ended(*this, status);
}

void Bundle::Begin(tf::OpKernelContext* ctx,
                   const std::vector<std::string>& nodes,
                   const std::shared_ptr<Runtime>& runtime, int set_serial) {
  ctx_ = ctx;
  first_error_ = absl::OkStatus();
  open_ = nodes.size();
  if (calls_.empty()) {
    calls_ = std::vector<Call>(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      calls_[i].bundle_ = this;
      calls_[i].node_ = &nodes[i];
    }
  }
  if (described_for_.Is(runtime, set_serial)) return;
  for (Call& call : calls_) call.ForgetRequest();
  described_for_ = {runtime, set_serial};
}

void Bundle::Ended(const Call& call, const TfStatus& status) {
  if (!status.ok()) Fail(call, status);
  if (open_.fetch_sub(1) > 1) return;
  if (!first_error_.ok()) ctx_->SetStatus(first_error_);
  // TensorFlow's closure must be freed earlier than the buffers.
  const tf::AsyncOpKernel::DoneCallback done = std::move(done_);
  done();
}

void Bundle::Fail(const Call& failed, const TfStatus& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!first_error_.ok()) return;
    first_error_ = WithNode(status, *failed.node_);
  }
  // As TensorFlow would, if they were nodes. A peer whose step fails may never
  // make the calls that they wait for.
  for (Call& call : calls_) {
    if (&call != &failed) call.Withdraw(status);
  }
}

void Bundle::Reset() {
  for (Call& call : calls_) call.Reset();
}

}  // namespace hvd
