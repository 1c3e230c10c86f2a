// SPDX-License-Identifier: Apache-2.0
// A TensorFlow op that does the least that a collective can do. It is the
// yardstick of small_tensors.py. It takes up to 16 ranks of one host, and one
// batch at a time.
//
// Each kernel copies its input, and hands its done to one thread. The thread
// waits for `batch` of them. If `meet` is set, it then meets the other ranks'
// threads in shared memory. Then it calls the dones.
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = ::tensorflow;

using Counter = std::atomic<uint32_t>;

// How often each rank has arrived, in memory that all ranks share.
class Meeting {
 public:
  Meeting(int file, int rank, int size) : rank_(rank), size_(size) {
    void* const memory = mmap(nullptr, size * sizeof(Counter),
                              PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    arrived_ = memory == MAP_FAILED ? nullptr : static_cast<Counter*>(memory);
  }

  bool ok() const { return arrived_ != nullptr; }

  void Meet() {
    const uint32_t round = arrived_[rank_].fetch_add(1) + 1;
    Futex(&arrived_[rank_], FUTEX_WAKE, INT_MAX);
    for (int rank = 0; rank < size_; ++rank) {
      Counter& other = arrived_[rank];
      for (uint32_t seen = other.load(); static_cast<int32_t>(seen - round) < 0;
           seen = other.load()) {
        Futex(&other, FUTEX_WAIT, seen);
      }
    }
  }

 private:
  static void Futex(Counter* counter, int operation, uint32_t value) {
    syscall(SYS_futex, counter, operation, value, nullptr, nullptr, 0);
  }

  const int rank_;
  const int size_;
  Counter* arrived_ = nullptr;  // by rank
};

// The thread that the kernels hand their dones to. It lives as long as the
// process.
class Worker {
 public:
  static Worker& Get() {
    static Worker* const worker = std::make_unique<Worker>().release();
    return *worker;
  }

  Worker() {
    std::thread([this] { Run(); }).detach();
  }

  void Open(int file, int rank, int size) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (meeting_ == nullptr) {
      meeting_ = std::make_unique<Meeting>(file, rank, size);
    }
  }

  bool ok() {
    std::lock_guard<std::mutex> lock(mutex_);
    return meeting_ != nullptr && meeting_->ok();
  }

  void Add(tf::AsyncOpKernel::DoneCallback done, size_t batch, bool meet) {
    std::lock_guard<std::mutex> lock(mutex_);
    dones_.push_back(std::move(done));
    meet_ = meet;
    is_full_ = dones_.size() >= batch;
    if (is_full_) full_.notify_one();
  }

 private:
  void Run() {
    std::vector<tf::AsyncOpKernel::DoneCallback> batch;
    while (true) {
      bool meet;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        full_.wait(lock, [this] { return is_full_; });
        is_full_ = false;
        batch.swap(dones_);
        meet = meet_;
      }
      if (meet) meeting_->Meet();
      for (const auto& done : batch) done();
      batch.clear();
    }
  }

  std::mutex mutex_;
  std::condition_variable full_;
  bool is_full_ = false;
  bool meet_ = false;
  std::vector<tf::AsyncOpKernel::DoneCallback> dones_;
  std::unique_ptr<Meeting> meeting_;
};

class MeetKernel : public tf::AsyncOpKernel {
 public:
  explicit MeetKernel(tf::OpKernelConstruction* ctx) : tf::AsyncOpKernel(ctx) {
    int file = -1, rank = 0, size = 1;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("meet", &meet_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("batch", &batch_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("file", &file));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rank", &rank));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("size", &size));
    Worker::Get().Open(file, rank, size);
    OP_REQUIRES(ctx, Worker::Get().ok(),
                absl::InvalidArgumentError("no shared memory in that file"));
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    const tf::Tensor& input = ctx->input(0);
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(ctx, ctx->allocate_output(0, input.shape(), &output),
                         done);
    std::memcpy(output->data(), input.data(), input.TotalBytes());
    Worker::Get().Add(std::move(done), static_cast<size_t>(batch_), meet_);
  }

 private:
  bool meet_ = false;
  int batch_ = 1;
};

REGISTER_OP("BenchmarkMeet")
    .Input("input: float")
    .Output("output: float")
    .Attr("meet: bool")
    .Attr("batch: int")
    .Attr("file: int")
    .Attr("rank: int")
    .Attr("size: int")
    .SetShapeFn([](tf::shape_inference::InferenceContext* ctx) {
      ctx->set_output(0, ctx->input(0));
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("BenchmarkMeet").Device(tf::DEVICE_CPU),
                        MeetKernel);

}  // namespace
