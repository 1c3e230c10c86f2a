// SPDX-License-Identifier: Apache-2.0
// The kernels that give a graph the rank and sizes at the time it runs.
#include <memory>

#include "adapter/collective_kernel.h"
#include "adapter/global_runtime.h"
#include "adapter/op_definitions.h"
#include "adapter/tf_bridge.h"

namespace hvd {
namespace {

namespace tf = ::tensorflow;

// Answers of HorovodProcessSetIncluded that are neither yes nor no. Horovod's
// values are negative too.
constexpr int kNotInitialised = -1;
constexpr int kUnknownProcessSet = -2;

// An int32 scalar that is known when the kernel runs.
class InfoKernel : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) final {
    const std::shared_ptr<Runtime> runtime = GetRuntime();
    const Result<int> value = Value(runtime.get());
    OP_REQUIRES_OK(ctx, ToTf(value.status()));
    const Result<tf::Tensor> output =
        AllocateOutput(ctx, 0, tf::TensorShape({}));
    OP_REQUIRES_OK(ctx, ToTf(output.status()));
    *static_cast<int32_t*>(MutableData(output.value())) = value.value();
  }

 protected:
  // `runtime` is null when hvd is not initialised.
  virtual Result<int> Value(const Runtime* runtime) = 0;
};

class RankKernel : public InfoKernel {
 public:
  using InfoKernel::InfoKernel;

 protected:
  Result<int> Value(const Runtime* runtime) override {
    if (runtime == nullptr) return NotInitialized();
    return runtime->topology().rank;
  }
};

class LocalRankKernel : public InfoKernel {
 public:
  using InfoKernel::InfoKernel;

 protected:
  Result<int> Value(const Runtime* runtime) override {
    if (runtime == nullptr) return NotInitialized();
    return runtime->topology().local_rank;
  }
};

class LocalSizeKernel : public InfoKernel {
 public:
  using InfoKernel::InfoKernel;

 protected:
  Result<int> Value(const Runtime* runtime) override {
    if (runtime == nullptr) return NotInitialized();
    return runtime->topology().local_size;
  }
};

class ProcessSetKernel : public InfoKernel {
 public:
  explicit ProcessSetKernel(tf::OpKernelConstruction* ctx) : InfoKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &process_set_id_));
  }

 protected:
  int process_set_id() const { return process_set_id_; }

 private:
  int process_set_id_ = 0;
};

class SizeKernel : public ProcessSetKernel {
 public:
  using ProcessSetKernel::ProcessSetKernel;

 protected:
  Result<int> Value(const Runtime* runtime) override {
    if (runtime == nullptr) return NotInitialized();
    const ProcessSetPtr set = runtime->process_set(process_set_id());
    if (set == nullptr) return UnknownSet(process_set_id());
    return static_cast<int>(set->ranks.size());
  }
};

class ProcessSetIncludedKernel : public ProcessSetKernel {
 public:
  using ProcessSetKernel::ProcessSetKernel;

 protected:
  Result<int> Value(const Runtime* runtime) override {
    if (runtime == nullptr) return kNotInitialised;
    const ProcessSetPtr set = runtime->process_set(process_set_id());
    if (set == nullptr) return kUnknownProcessSet;
    return set->rank >= 0 ? 1 : 0;
  }
};

// Rank and size are read when the graph runs, because a graph may outlive
// hvd.init.

REGISTER_OP("HorovodRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The rank of this process in the job.");

REGISTER_OP("HorovodLocalRank")
    .Output("local_rank: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The rank of this process among those of its host.");

REGISTER_OP("HorovodLocalSize")
    .Output("local_size: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The number of ranks on this host.");

REGISTER_OP("HorovodSize")
    .Attr("process_set_id: int = 0")
    .Output("size: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "The number of ranks of a process set."
        "\n\nprocess_set_id: The set; 0 is all ranks.");

REGISTER_OP("HorovodProcessSetIncluded")
    .Attr("process_set_id: int = 0")
    .Output("included: int32")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(
        "1 when this rank is a member of a process set, else 0; -1 when hvd is "
        "not initialised, -2 for an unknown set."
        "\n\nprocess_set_id: The set; 0 is all ranks.");

HVD_REGISTER_HOST_KERNELS("HorovodRank", RankKernel, "rank");
HVD_REGISTER_HOST_KERNELS("HorovodLocalRank", LocalRankKernel, "local_rank");
HVD_REGISTER_HOST_KERNELS("HorovodLocalSize", LocalSizeKernel, "local_size");
HVD_REGISTER_HOST_KERNELS("HorovodSize", SizeKernel, "size");
HVD_REGISTER_HOST_KERNELS("HorovodProcessSetIncluded", ProcessSetIncludedKernel,
                          "included");

}  // namespace
}  // namespace hvd
