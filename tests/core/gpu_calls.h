// SPDX-License-Identifier: Apache-2.0
// Reductions of floats on a GPU that is made up, as a caller makes and awaits
// them, and jobs whose ranks have such GPUs.
#ifndef HVD_TESTS_CORE_GPU_CALLS_H_
#define HVD_TESTS_CORE_GPU_CALLS_H_

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/lanes.h"
#include "core/runtime.h"
#include "faults.h"
#include "harness.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "test_gpu.h"
#include "thread_world.h"
#include "transport/cuda/cuda_lanes.h"

namespace hvd {

struct GpuAsk {
  std::string name;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0, postscale = 1.0;
  int set = 0;
  int64_t step = 0;
};

// A reduction of a tensor on a GPU, in place. The GPU reads and writes it
// until the runtime has let go of the entry.
class GpuCall {
 public:
  GpuCall(TestGpu* gpu, Runtime* runtime, const GpuAsk& ask,
          const Floats& values)
      : gpu_(gpu), count_(values.size()) {
    auto entry = std::make_shared<Entry>();
    const auto memory = gpu->Allocate(count_ * sizeof(float));
    memory_ = memory;
    // As a kernel that the framework's stream comes to later.
    gpu->Compute([gpu, memory, values] {
      gpu->gpu().Write(memory.get(), values.data(),
                       values.size() * sizeof(float));
    });
    entry->request.key.name = ask.name;
    entry->request.step = ask.step;
    Signature& signature = entry->request.signature;
    signature.memory = MemoryKind::kCuda;
    signature.reduce_op = ask.op;
    signature.prescale = ask.prescale;
    signature.postscale = ask.postscale;
    signature.shapes = {{static_cast<int64_t>(count_)}};
    entry->inputs = {memory.get()};
    entry->outputs = {memory.get()};
    entry->ready = gpu->Mark();
    entry->ticket = ticket = runtime->NewTicket();
    entry->done = [this, memory](const Status& status) {
      ended_.set_value(status);
    };
    runtime->Enqueue(*runtime->process_set(ask.set), entry);
  }
  GpuCall(TestGpu* gpu, Runtime* runtime, const std::string& name,
          const Floats& values)
      : GpuCall(gpu, runtime, GpuAsk{name}, values) {}

  Status Wait() { return result_.get(); }
  bool told() const {
    return result_.wait_for(std::chrono::seconds(0)) ==
           std::future_status::ready;
  }
  // As the framework's stream finds them.
  Floats Values() const {
    const auto values = std::make_shared<std::promise<Floats>>();
    gpu_->Compute([gpu = gpu_, memory = memory_, count = count_, values] {
      Floats found(count);
      gpu->gpu().Read(found.data(), memory.get(), count * sizeof(float));
      values->set_value(std::move(found));
    });
    return values->get_future().get();
  }

  uint64_t ticket = 0;

 private:
  TestGpu* const gpu_;
  const size_t count_;
  std::shared_ptr<void> memory_;
  std::promise<Status> ended_;
  std::future<Status> result_ = ended_.get_future();
};

// CudaLanes, but for what a test does to their owners.
class LanesOfTest final : public DeviceLanes {
 public:
  using ChangeOwner = std::function<void(LaneOwner* owner)>;

  LanesOfTest(std::unique_ptr<CudaLanes> lanes, ChangeOwner change)
      : lanes_(std::move(lanes)), change_(std::move(change)) {}
  std::unique_ptr<Transport> NewLane(Transport* host,
                                     LaneOwner owner) override {
    change_(&owner);
    return lanes_->NewLane(host, std::move(owner));
  }

 private:
  const std::unique_ptr<CudaLanes> lanes_;
  const ChangeOwner change_;
};

// What is not as usual in a job.
struct GpuJob {
  std::vector<std::vector<int>> sets;
  Options options = Options::Defaults();
  std::chrono::milliseconds connect_limit = CudaLanes::kConnectLimit;
  std::function<const void*(int rank)> kernels = [](int) {
    return FakeKernelImage();
  };
  std::vector<std::string> hosts;  // of each rank. Empty: all on one
  std::vector<std::shared_ptr<Faults>> faults;  // of each rank. Empty: none
  LanesOfTest::ChangeOwner change_owner = [](LaneOwner*) {};
};

// The body gets a GPU of the rank's own, which works by itself. `find` finds
// the rank's NCCL. Returns by how much the thread of a GPU was late: see
// PlayUntilOnTime.
inline double RunOnGpus(
    int size, const std::function<void(int, Runtime*, TestGpu*)>& body,
    const std::function<Result<const NcclLibrary*>(int rank)>& find,
    const GpuJob& job = {}) {
  ThreadWorld world(size, job.hosts, 4096);
  std::vector<double> pauses_s(static_cast<size_t>(size));
  RunRanks(size, [&](int rank) {
    TestGpu gpu;
    gpu.gpu().WorkAlone();
    auto backend = job.faults.empty() ? world.Open(rank)
                                      : world.Open(rank, job.faults[rank]);
    auto lanes = std::make_unique<CudaLanes>(
        backend->doorbell(), [&, rank] { return find(rank); },
        job.connect_limit, job.kernels(rank));
    Runtime runtime(
        std::move(backend), job.options,
        std::make_unique<LanesOfTest>(std::move(lanes), job.change_owner));
    EXPECT_EQ(runtime.Start(job.sets).message(), "");
    body(rank, &runtime, &gpu);
    runtime.Stop();
    pauses_s[rank] = gpu.gpu().longest_pause_s();
  });
  return *std::max_element(pauses_s.begin(), pauses_s.end());
}

inline Result<const NcclLibrary*> NoNccl(int /*rank*/) {
  return FailedPrecondition("libnccl.so.2 cannot be loaded: it is not there");
}

}  // namespace hvd

#endif  // HVD_TESTS_CORE_GPU_CALLS_H_
