// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU: random tensors at random places, against the host.
//
// Needs a GPU, and no TensorFlow. Exits with 77 where there is none.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/elementwise.h"
#include "gpu_call.h"
#include "harness.h"
#include "loaded_kernels.h"
#include "typed_values.h"

namespace hvd {
namespace {

constexpr unsigned char kPoison = 0xa5;

// Memory of a GPU, with a copy on the host.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::vector<unsigned char> host)
      : host_(std::move(host)) {
    CheckCuda(cudaMalloc(&data_, host_.size()));
    CheckCuda(
        cudaMemcpy(data_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  const std::vector<unsigned char>& host() const { return host_; }
  std::vector<unsigned char> Read() const {
    std::vector<unsigned char> bytes(host_.size());
    CheckCuda(
        cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  std::vector<unsigned char> host_;
  void* data_ = nullptr;
};

std::vector<unsigned char> Noise(std::mt19937* random, int64_t bytes) {
  std::vector<unsigned char> noise(static_cast<size_t>(bytes));
  for (unsigned char& one : noise)
    one = static_cast<unsigned char>((*random)());
  return noise;
}

// Where tensors are: with gaps between them of some elements each.
std::vector<int64_t> Places(std::mt19937* random,
                            const std::vector<int64_t>& counts, int64_t bytes,
                            int64_t* end) {
  std::vector<int64_t> places;
  int64_t at = 0;
  for (const int64_t count : counts) {
    at += static_cast<int64_t>((*random)() % 40);
    places.push_back(at * bytes);
    at += count;
  }
  *end = (at + 40) * bytes;
  return places;
}

// Which NaN it is does not matter: where both have one, `found` gets the
// other's.
void LevelNans(DataType type, int64_t count, unsigned char* found,
               const unsigned char* expected) {
  const size_t bytes = SizeOf(type);
  std::vector<double> one(static_cast<size_t>(count)), other(one.size());
  Unpack(type, DataType::kFloat64, found, one.data(), count);
  Unpack(type, DataType::kFloat64, expected, other.data(), count);
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i] == one[i] || other[i] == other[i]) continue;
    std::memcpy(found + i * bytes, expected + i * bytes, bytes);
  }
}

// Random bits of `operation.from`, many tensors at a time.
void CheckCopies(const CopyOperation& operation, std::mt19937* random) {
  const auto from_bytes = static_cast<int64_t>(SizeOf(operation.from));
  const auto to_bytes = static_cast<int64_t>(SizeOf(operation.to));
  std::vector<int64_t> counts;
  for (int i = 0; i < 300; ++i) {
    const int64_t most = i % 50 == 0 ? 400'000 : 3000;
    counts.push_back(static_cast<int64_t>((*random)() % most));
  }
  int64_t from_end = 0, to_end = 0;
  const auto from_at = Places(random, counts, from_bytes, &from_end);
  const auto to_at = Places(random, counts, to_bytes, &to_end);
  const DeviceBytes from(Noise(random, from_end));
  const DeviceBytes to(std::vector<unsigned char>(to_end, kPoison));
  std::vector<unsigned char> expected = to.host();
  std::vector<CopySegment> segments;
  for (size_t i = 0; i < counts.size(); ++i) {
    segments.push_back(
        {from.data() + from_at[i], to.data() + to_at[i], counts[i]});
    Pack(operation.from, operation.to, from.host().data() + from_at[i],
         expected.data() + to_at[i], counts[i], operation.scale);
  }
  cudaStream_t stream;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CheckCuda(cudaDeviceSynchronize());
  EXPECT_EQ(LoadedKernels().Copy(segments, operation, stream).message(), "");
  CheckCuda(cudaStreamSynchronize(stream));
  CheckCuda(cudaStreamDestroy(stream));
  std::vector<unsigned char> found = to.Read();
  if (IsFloating(operation.to)) {
    for (size_t i = 0; i < counts.size(); ++i) {
      LevelNans(operation.to, counts[i], found.data() + to_at[i],
                expected.data() + to_at[i]);
    }
  }
  EXPECT_TRUE(found == expected);
}

TEST(moves_of_every_type) {
  NeedGpu();
  std::mt19937 random(1);
  for (const DataType type :
       {DataType::kUint8, DataType::kInt16, DataType::kFloat16,
        DataType::kInt32, DataType::kFloat32, DataType::kInt64,
        DataType::kFloat64}) {
    CheckCopies({type, type, 1.0}, &random);
  }
}

TEST(conversions_and_scales) {
  NeedGpu();
  std::mt19937 random(2);
  const DataType types[] = {DataType::kFloat16, DataType::kBfloat16,
                            DataType::kFloat32, DataType::kFloat64};
  for (const DataType from : types) {
    for (const DataType to : types) {
      for (const double scale : {1.0, 0.5, 1.0 / 3}) {
        CheckCopies({from, to, scale}, &random);
      }
    }
  }
}

TEST(host_memory_that_is_pinned) {
  NeedGpu();
  const size_t bytes = 1'000'003;
  std::mt19937 random(3);
  const DeviceBytes from(Noise(&random, bytes));
  void* pinned = nullptr;
  CheckCuda(cudaMallocHost(&pinned, bytes));
  std::memset(pinned, kPoison, bytes);
  const CopyOperation move = {DataType::kUint8, DataType::kUint8, 1.0};
  EXPECT_TRUE(
      LoadedKernels().Copy({{from.data(), pinned, bytes}}, move, nullptr).ok());
  CheckCuda(cudaDeviceSynchronize());
  EXPECT_EQ(std::memcmp(pinned, from.host().data(), bytes), 0);
  CheckCuda(cudaFreeHost(pinned));
}

std::vector<unsigned char> BytesOf(const std::vector<uint32_t>& numbers) {
  std::vector<unsigned char> bytes(numbers.size() * sizeof(uint32_t));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

// Rows of random numbers of `From`, of which some have many terms.
template <typename From, typename To>
void CheckRowSums(DataType from_type, DataType to_type, int64_t row_count,
                  int64_t shift, std::mt19937* random) {
  constexpr int64_t kRows = 500, kListed = 3000;
  std::vector<unsigned char> values((shift + kListed * row_count) *
                                    sizeof(From));
  for (int64_t i = 0; i < shift + kListed * row_count; ++i) {
    const From value = ConvertFloat<From>(
        static_cast<float>((*random)() % 4000) / 7.0f - 300.0f);
    std::memcpy(values.data() + i * sizeof(From), &value, sizeof(From));
  }
  std::vector<uint32_t> begins = {0}, sources;
  for (int64_t row = 0; row < kRows; ++row) {
    for (uint32_t terms = (*random)() % (row % 50 == 0 ? 900 : 6); terms > 0;
         --terms) {
      sources.push_back((*random)() % kListed);
    }
    begins.push_back(static_cast<uint32_t>(sources.size()));
  }
  const size_t before = static_cast<size_t>(shift) * sizeof(To);
  const DeviceBytes from(std::move(values));
  const DeviceBytes on_gpu_begins(BytesOf(begins));
  const DeviceBytes on_gpu_sources(BytesOf(sources));
  const DeviceBytes to(std::vector<unsigned char>(
      before + kRows * row_count * sizeof(To) + 16, kPoison));
  const RowSumFactors factors = {3.0, 0.7, true, 0.9};
  RowSums rows = {from.data() + shift * sizeof(From),
                  to.data() + before,
                  reinterpret_cast<const uint32_t*>(on_gpu_begins.data()),
                  reinterpret_cast<const uint32_t*>(on_gpu_sources.data()),
                  kRows * row_count,
                  row_count};
  CheckCuda(cudaDeviceSynchronize());
  EXPECT_EQ(LoadedKernels()
                .SumRows({rows}, {from_type, to_type, factors}, nullptr)
                .message(),
            "");
  CheckCuda(cudaDeviceSynchronize());
  std::vector<unsigned char> expected = to.host();
  rows = {from.host().data() + shift * sizeof(From),
          expected.data() + before,
          begins.data(),
          sources.data(),
          rows.count,
          row_count};
  for (const RowSumTable& table :
       MakeTileTables<RowSumTable>({rows}, 64 * kRowSumAlignment)) {
    for (uint32_t tile = 0; tile < table.tile_count(); ++tile) {
      SumTile<From, To>(table, tile, factors, TileThread{0, 1});
    }
  }
  EXPECT_TRUE(to.Read() == expected);
}

TEST(rows_are_added_up_with_the_bits_of_the_host) {
  NeedGpu();
  std::mt19937 random(4);
  VisitFloatingPairs(
      [&](DataType from_type, DataType to_type, auto from, auto to) {
        for (const int64_t row_count : {1, 7, 16, 128}) {
          for (const int64_t shift : {0, 1}) {
            CheckRowSums<decltype(from), decltype(to)>(
                from_type, to_type, row_count, shift, &random);
          }
        }
      });
}

TEST(integers_are_not_scaled) {
  const CopyOperation scaled = {DataType::kInt32, DataType::kInt32, 0.5};
  EXPECT_EQ(LoadedKernels().Copy({}, scaled, nullptr).message(),
            "a GPU is asked to scale or convert int32 to int32.");
}

}  // namespace
}  // namespace hvd
