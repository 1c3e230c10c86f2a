// SPDX-License-Identifier: Apache-2.0
// How long a sum of a tensor on a GPU takes when it is staged on the host. The
// ranks are processes, which share the GPU. One rank alone has NCCL, where its
// library is found: then "lane" is what all but the sum takes.
//
//   mpirun -n RANKS gpu_staging [rounds]
//
// Beside it stand the same sum in host memory, and a plain copy of the tensor
// to pinned memory and back: the two things that staging cannot do without.
// Each figure is the median of the rounds on rank 0. Ways take turns. Sums are
// compared with what they must be.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime.h"
#include "gpu_call.h"
#include "transport/backends.h"

namespace hvd {
namespace {

void CheckOk(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message().c_str());
  std::exit(1);
}

class HostSum {
 public:
  HostSum(Runtime* runtime, const std::string& name, float* memory,
          int64_t elements) {
    auto entry = std::make_shared<Entry>();
    entry->request.key.name = name;
    entry->request.signature.shapes = {{elements}};
    entry->inputs = {memory};
    entry->outputs = {memory};
    entry->ticket = runtime->NewTicket();
    entry->done = [this](const Status& status) { ended_.set_value(status); };
    runtime->Enqueue(*runtime->process_set(0), std::move(entry));
  }
  Status Wait() { return result_.get(); }

 private:
  std::promise<Status> ended_;
  std::future<Status> result_ = ended_.get_future();
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

class Staging {
 public:
  Staging(Runtime* runtime, int64_t elements)
      : runtime_(runtime),
        elements_(elements),
        rank_(runtime->topology().rank),
        size_(runtime->topology().size) {
    CheckCuda(cudaMalloc(&on_gpu_, Bytes()));
    CheckCuda(cudaMallocHost(&pinned_, Bytes()));
    on_host_.resize(static_cast<size_t>(elements));
  }
  ~Staging() {
    (void)cudaFree(on_gpu_);
    (void)cudaFreeHost(pinned_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void Run(int rounds) {
    std::vector<double> copies, host, gpu;
    for (int round = -3; round < rounds; ++round) {
      const double copy_s = TimeCopies(), host_s = TimeHost(),
                   gpu_s = TimeGpu();
      if (round < 0) continue;
      copies.push_back(copy_s);
      host.push_back(host_s);
      gpu.push_back(gpu_s);
    }
    if (rank_ != 0) return;
    const double floor = Median(copies) + Median(host);
    std::printf("| %d | %9.3f | %9.1f | %9.1f | %9.1f | %5.2f |\n", size_,
                static_cast<double>(Bytes()) / 1e6, Median(copies) * 1e6,
                Median(host) * 1e6, Median(gpu) * 1e6, Median(gpu) / floor);
    std::fflush(stdout);
  }

 private:
  size_t Bytes() const { return static_cast<size_t>(elements_) * 4; }

  void Meet() {
    float one = 1;
    HostSum meeting(runtime_, "meeting", &one, 1);
    CheckOk(meeting.Wait());
  }
  void Fill() {
    for (size_t i = 0; i < on_host_.size(); ++i) {
      on_host_[i] = static_cast<float>(rank_) + static_cast<float>(i % 13);
    }
  }
  void CheckSum() const {
    const float base = static_cast<float>(size_ * (size_ - 1) / 2);
    for (size_t i = 0; i < on_host_.size(); ++i) {
      if (on_host_[i] == base + static_cast<float>(size_ * (i % 13))) continue;
      std::printf("element %zu of the sum is %g\n", i, on_host_[i]);
      std::exit(1);
    }
  }

  double TimeCopies() {
    Meet();
    const auto begin = std::chrono::steady_clock::now();
    CheckCuda(cudaMemcpyAsync(pinned_, on_gpu_, Bytes(), cudaMemcpyDeviceToHost,
                              stream_.get()));
    CheckCuda(cudaMemcpyAsync(on_gpu_, pinned_, Bytes(), cudaMemcpyHostToDevice,
                              stream_.get()));
    CheckCuda(cudaStreamSynchronize(stream_.get()));
    return SecondsSince(begin);
  }
  double TimeHost() {
    Fill();
    Meet();
    const auto begin = std::chrono::steady_clock::now();
    HostSum sum(runtime_, "host", on_host_.data(), elements_);
    CheckOk(sum.Wait());
    const double seconds = SecondsSince(begin);
    CheckSum();
    return seconds;
  }
  double TimeGpu() {
    Fill();
    // On the stream that the sum waits for. Another one may still copy memory
    // that is not pinned when the call returns.
    CheckCuda(cudaMemcpyAsync(on_gpu_, on_host_.data(), Bytes(),
                              cudaMemcpyHostToDevice, stream_.get()));
    Meet();
    CheckCuda(cudaStreamSynchronize(stream_.get()));
    const auto begin = std::chrono::steady_clock::now();
    GpuSum sum(runtime_, stream_, "gpu", DataType::kFloat32, on_gpu_,
               elements_);
    CheckOk(sum.Wait());
    const double seconds = SecondsSince(begin);
    CheckCuda(
        cudaMemcpy(on_host_.data(), on_gpu_, Bytes(), cudaMemcpyDeviceToHost));
    CheckSum();
    return seconds;
  }

  Runtime* const runtime_;
  const int64_t elements_;
  const int rank_, size_;
  const FrameworkStream stream_;
  void* on_gpu_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<float> on_host_;
};

int Run(int rounds) {
  const Options options = Options::Defaults();
  auto backend = OpenBackend({}, options);
  CheckOk(backend.status());
  CheckOk(PrepareDeviceLanes());
  auto lanes = OpenDeviceLanes(backend.value()->doorbell());
  Runtime runtime(std::move(backend.value()), options, std::move(lanes));
  CheckOk(runtime.Start({}));
  if (runtime.topology().rank == 0) {
    std::printf("| ranks | MB | copies us | sum on host us | lane us |");
    std::printf(" of copies + sum |\n|---|---|---|---|---|---|\n");
  }
  for (const int64_t elements : {256, 16'384, 262'144, 4'000'000, 25'600'000}) {
    Staging(&runtime, elements).Run(rounds);
  }
  runtime.Stop();
  return 0;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  if (rounds < 1) {
    std::printf("the argument is no number of rounds\n");
    return 1;
  }
  hvd::NeedGpu();
  const int status = hvd::Run(rounds);
  hvd::FinalizeBackends();
  return status;
}
