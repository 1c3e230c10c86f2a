// SPDX-License-Identifier: Apache-2.0
// Reads the call site of a kernel from TensorFlow's context.
#include "adapter/call_site.h"

#include <string>

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// A number that tells iterations of loops apart. Loops may be nested.
// TensorFlow runs several iterations of an outer loop at a time, and iterations
// of the inner loop then differ in the frame only. The frame's number is a hash
// of its name and of the outer iteration. So it is the same on every rank.
uint64_t InstanceOf(const tf::FrameAndIter& at) {
  const uint64_t frame = at.frame_id ^ (at.frame_id >> 32);
  return (frame << 32) | (static_cast<uint64_t>(at.iter_id) & 0xffffffffu);
}

// An eager op is a step of its own, and no other op belongs to it.
int64_t StepOf(tf::OpKernelContext* ctx) {
  return IsEager(ctx->op_kernel()) ? 0 : ctx->step_id();
}

// The step's threads, which run what follows the call. Null where the pool's
// last free thread may be the one that waits for the call. That is the case for
// an eager op, which a Python op of a graph may call, and for executors that
// run one op at a time.
const Runner* RunnerOf(tf::OpKernelContext* ctx, int64_t step) {
  const std::string& executor = ctx->executor_type();
  const bool waits = step == 0 || (!executor.empty() && executor != "DEFAULT");
  return waits ? nullptr : ctx->runner();
}

// Data verbs are stateless, so TensorFlow tries to fold one whose input is a
// constant. It does so while a graph is optimised (there is no step, no
// cancellation and no function library) or built (the step has a special
// number). Ranks fold at different times, and each time they retrace. So a
// collective must not run then. The error makes TensorFlow leave the node
// alone.
bool IsFoldingConstants(tf::OpKernelContext* ctx) {
  return ctx->step_id() == tf::LogMemory::CONSTANT_FOLDING_STEP_ID ||
         (ctx->cancellation_manager() == nullptr &&
          ctx->function_library() == nullptr);
}

}  // namespace

bool IsEager(const tf::OpKernel& kernel) {
  return kernel.name() == kernel.type_string();
}

TfStatus RefuseFolding(tf::OpKernelContext* ctx) {
  if (!IsFoldingConstants(ctx)) return absl::OkStatus();
  return TfStatus(absl::StatusCode::kFailedPrecondition,
                  "a collective does not run while constants are folded");
}

CallSite CallSiteOf(tf::OpKernelContext* ctx) {
  CallSite site;
  site.step = StepOf(ctx);
  site.instance = InstanceOf(ctx->frame_iter());
  site.runner = RunnerOf(ctx, site.step);
  site.runs_inline = site.runner != nullptr && ctx->run_all_kernels_inline();
  site.cancellation = ctx->cancellation_manager();
  site.rendezvous = ctx->rendezvous();
  return site;
}

}  // namespace hvd
