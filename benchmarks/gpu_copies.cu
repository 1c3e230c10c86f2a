// SPDX-License-Identifier: Apache-2.0
// How fast a GPU packs many tensors into one buffer and unpacks them, against
// a plain copy of as many bytes from device to device.
//
//   gpu_copies [rounds]
//
// Bandwidths count bytes read and bytes written, in 1e9 bytes a second. Each is
// the median of the rounds. Ways take turns.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gpu_timing.h"
#include "loaded_kernels.h"

namespace hvd {
namespace {

// Elements of the trainable variables of ResNet-50, of which there are 161.
std::vector<int64_t> ResNet50() {
  std::vector<int64_t> counts = {7 * 7 * 3 * 64, 64, 64};
  const auto convolution = [&](int64_t size, int64_t in, int64_t out) {
    counts.push_back(size * size * in * out);
    counts.push_back(out);  // the normalisation's scale and offset
    counts.push_back(out);
  };
  const int blocks[] = {3, 4, 6, 3};
  int64_t in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      if (block == 0) convolution(1, in, 4 * width);
      convolution(1, in, width);
      convolution(3, width, width);
      convolution(1, width, 4 * width);
      in = 4 * width;
    }
  }
  counts.push_back(in * 1000);
  counts.push_back(1000);
  return counts;
}

// 1000 tensors of 1 KB to 1 MB, as many of each order of size.
std::vector<int64_t> Mixed() {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(10, 20);
  std::vector<int64_t> counts;
  for (int i = 0; i < 1000; ++i) {
    counts.push_back(static_cast<int64_t>(std::exp2(exponent(random))) / 4);
  }
  return counts;
}

class Benchmark {
 public:
  Benchmark(std::string name, const std::vector<int64_t>& counts)
      : name_(std::move(name)) {
    for (const int64_t count : counts) elements_ += count;
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Check(cudaMalloc(&buffer_, elements_ * 4 + counts.size() * 256));
    Check(cudaMalloc(&other_, elements_ * 4 + counts.size() * 256));
    Check(cudaMemset(other_, 0, elements_ * 4));
    auto* at = static_cast<char*>(buffer_);
    for (const int64_t count : counts) {
      void* tensor = nullptr;
      Check(cudaMalloc(&tensor, count * 4));
      Check(cudaMemset(tensor, 0, count * 4));
      tensors_.push_back(tensor);
      pack_.push_back({tensor, at, count});
      unpack_.push_back({at, tensor, count});
      at += (count * 4 + 255) / 256 * 256;
    }
  }
  ~Benchmark() {
    for (void* tensor : tensors_) (void)cudaFree(tensor);
    (void)cudaFree(buffer_);
    (void)cudaFree(other_);
    (void)cudaStreamDestroy(stream_);
  }

  void Run(int rounds) {
    struct Way {
      const char* name;
      int64_t element_bytes;  // read and written
      std::function<void()> work;
      std::vector<double> seconds;
    };
    const auto copies = [&](const std::vector<CopySegment>& segments,
                            CopyOperation operation) {
      return [=] { Check(LoadedKernels().Copy(segments, operation, stream_)); };
    };
    const DataType single = DataType::kFloat32, half = DataType::kFloat16;
    Way ways[] = {
        {"copy",
         8,
         [&] {
           Check(cudaMemcpyAsync(other_, buffer_, elements_ * 4,
                                 cudaMemcpyDeviceToDevice, stream_));
         },
         {}},
        {"pack", 8, copies(pack_, {single, single, 1.0}), {}},
        {"unpack", 8, copies(unpack_, {single, single, 1.0}), {}},
        {"pack, scaled", 8, copies(pack_, {single, single, 0.5}), {}},
        {"pack to float16", 6, copies(pack_, {single, half, 1.0}), {}},
        {"unpack float16", 6, copies(unpack_, {half, single, 1.0}), {}}};
    for (int round = -3; round < rounds; ++round) {
      for (Way& way : ways) {
        const double seconds = Timed(stream_, way.work);
        if (round >= 0) way.seconds.push_back(seconds);
      }
    }
    double copy = 0;
    for (const Way& way : ways) {
      const double gb_per_s =
          elements_ * way.element_bytes / Median(way.seconds) / 1e9;
      if (copy == 0) copy = gb_per_s;
      std::printf("| %-20s | %4zu | %7.1f MB | %-15s | %7.0f | %5.2f |\n",
                  name_.c_str(), tensors_.size(), elements_ * 4 / 1e6, way.name,
                  gb_per_s, gb_per_s / copy);
    }
  }

 private:
  const std::string name_;
  int64_t elements_ = 0;
  cudaStream_t stream_ = nullptr;
  void* buffer_ = nullptr;
  void* other_ = nullptr;
  std::vector<void*> tensors_;
  std::vector<CopySegment> pack_, unpack_;
};

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  if (!hvd::PrintGpu(rounds)) return 1;
  std::printf("| tensors | count | size | way | GB/s | of a copy |\n");
  std::printf("|---|---|---|---|---|---|\n");
  hvd::Benchmark("ResNet-50", hvd::ResNet50()).Run(rounds);
  hvd::Benchmark("1 KB to 1 MB", hvd::Mixed()).Run(rounds);
}
