// SPDX-License-Identifier: Apache-2.0
// OnGpu: runs batches of host memory as batches of a GPU, for the contract.
#ifndef HVD_TESTS_CORE_ON_GPU_H_
#define HVD_TESTS_CORE_ON_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "core/transport.h"
#include "cpu/row_groups.h"
#include "test_gpu.h"

namespace hvd {

// Takes batches in host memory, as a framework would have them on its GPU. The
// inputs are there only when Progress or Cancel has been called: before that
// the GPU has poison. Memory of late outputs is still written by the
// framework's stream when they get it.
class OnGpu final : public Transport {
 public:
  // `lane` uses `host`. `reads_in_stream_order`: outputs are looked at by the
  // framework's stream, as it comes to that.
  OnGpu(std::unique_ptr<Transport> host, std::shared_ptr<TestGpu> gpu,
        std::unique_ptr<Transport> lane, bool reads_in_stream_order)
      : gpu_(std::move(gpu)),
        host_(std::move(host)),
        reads_in_stream_order_(reads_in_stream_order),
        lane_(std::move(lane)) {}

  int rank() const override { return lane_->rank(); }
  int size() const override { return lane_->size(); }
  bool within_host() const override { return lane_->within_host(); }
  ChunkLimits chunk_limits() const override { return host_->chunk_limits(); }
  void SetChunkBytes(int64_t bytes) override { host_->SetChunkBytes(bytes); }
  int in_flight() const override {
    return lane_->in_flight() + host_->in_flight() +
           static_cast<int>(reading_.size());
  }

  BatchId Start(Batch batch, BatchDone done) override {
    const auto moved = std::make_shared<Moved>();
    batch.memory = MemoryKind::kCuda;
    if (!batch.local_error.ok()) {
      for (Segment& segment : batch.segments) {
        segment.in = segment.out = nullptr;
      }
    } else {
      for (Segment& segment : batch.segments) {
        MoveIn(batch, &segment, moved.get());
      }
      gpu_->Compute([gpu = gpu_.get(), moved] {
        for (const Input& input : moved->inputs) {
          gpu->gpu().Write(input.device, input.values.data(),
                           input.values.size());
        }
      });
      const TestGpu::Ready ready = gpu_->Mark();
      for (Segment& segment : batch.segments) segment.ready = ready;
      MoveLateOutputs(&batch, moved);
    }
    const auto number = std::make_shared<BatchId>();
    *number = lane_->Start(
        std::move(batch),
        [this, moved, number, done = std::move(done)](const Status& status) {
          if (!status.ok() || !reads_in_stream_order_) {
            if (status.ok()) ReadOutputs(gpu_.get(), *moved);
            running_.erase(*number);
            return done(status);
          }
          const auto is_read = std::make_shared<bool>(false);
          gpu_->Compute([gpu = gpu_.get(), moved, is_read] {
            ReadOutputs(gpu, *moved);
            *is_read = true;
          });
          reading_.push_back({is_read, *number, done});
        });
    running_.insert(*number);
    return *number;
  }

  bool Progress() override {
    // The host's first, which might read what the GPU has not copied yet.
    bool moved = host_->Progress();
    gpu_->Step();
    moved |= lane_->Progress();
    return CallReaders() || moved;
  }

  void Cancel(BatchId id, const Status& why) override {
    gpu_->Step();
    lane_->Cancel(id, why);
    // Cases expect that it is done now.
    while (running_.count(id) > 0) {
      (void)Progress();
    }
  }

 private:
  struct Output {
    void* host;
    const void* device;
    size_t bytes;
  };
  // A copy, because the GPU may come to it when the caller's memory has gone.
  struct Input {
    void* device;
    std::vector<std::byte> values;
  };
  struct Moved {
    std::vector<std::shared_ptr<void>> memory;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
  };
  using MovedPtr = std::shared_ptr<Moved>;
  // A batch that is done, whose outputs the framework's stream reads.
  struct Reader {
    std::shared_ptr<const bool> is_read;
    BatchId number;
    BatchDone done;
  };

  static void ReadOutputs(TestGpu* gpu, const Moved& moved) {
    for (const Output& output : moved.outputs) {
      gpu->gpu().Read(output.host, output.device, output.bytes);
    }
  }

  // True if any has read.
  bool CallReaders() {
    std::vector<Reader> readers = std::exchange(reading_, {}), ready;
    for (Reader& reader : readers) {
      (*reader.is_read ? ready : reading_).push_back(std::move(reader));
    }
    for (const Reader& reader : ready) {
      running_.erase(reader.number);
      reader.done(Status::Ok());
    }
    return !ready.empty();
  }

  void* NewMemory(Moved* moved, int64_t bytes) {
    return moved->memory
        .emplace_back(gpu_->Allocate(static_cast<size_t>(bytes)))
        .get();
  }

  const void* MoveInput(Moved* moved, const void* host, int64_t bytes) {
    if (host == nullptr) return nullptr;
    void* const device = NewMemory(moved, bytes);
    const auto* const begin = static_cast<const std::byte*>(host);
    moved->inputs.push_back({device, {begin, begin + bytes}});
    return device;
  }

  // The framework has them in another order, and every third one with another
  // row of its id, which is 0. One has so many of them that a GPU adds them up
  // in parts.
  void MoveRows(Segment* segment, int64_t row_bytes, Moved* moved) {
    const auto groups = std::make_shared<RowGroups>();
    std::vector<std::byte> list;
    for (int64_t row = segment->rows - 1; row >= 0; --row) {
      groups->ids.push_back(row);  // how many there are is all that counts
      groups->places.push_back(static_cast<uint32_t>(row));
      const auto* const from =
          static_cast<const std::byte*>(segment->in) + row * row_bytes;
      list.insert(list.end(), from, from + row_bytes);
      for (int more = row == 0 ? 150 : row % 3 == 0 ? 1 : 0; more > 0; --more) {
        groups->places.push_back(static_cast<uint32_t>(row));
        list.resize(list.size() + static_cast<size_t>(row_bytes));
      }
    }
    segment->in =
        MoveInput(moved, list.data(), static_cast<int64_t>(list.size()));
    segment->groups = groups;
  }

  void* MoveOutput(Moved* moved, void* host, int64_t bytes) {
    if (host == nullptr) return nullptr;
    void* const device = NewMemory(moved, bytes);
    moved->outputs.push_back({host, device, static_cast<size_t>(bytes)});
    return device;
  }

  void MoveIn(const Batch& batch, Segment* segment, Moved* moved) {
    const auto element = static_cast<int64_t>(SizeOf(batch.dtype));
    const void* const in = segment->in;
    if (in != nullptr && segment->rows > 0 &&
        batch.verb == Verb::kSparseAllreduce) {
      MoveRows(segment, segment->row_count * element, moved);
    } else {
      segment->in = MoveInput(moved, in, segment->count * element);
    }
    if (segment->out == nullptr || Varies(batch.verb)) return;
    int64_t count = segment->count;
    if (batch.verb == Verb::kReducescatter) {
      count = ScatteredRows(segment->rows, rank(), size()).size() *
              segment->row_count;
    }
    if (segment->out == in) {
      void* const device = const_cast<void*>(segment->in);
      moved->outputs.push_back(
          {segment->out, device, static_cast<size_t>(count * element)});
      segment->out = device;
    } else {
      segment->out = MoveOutput(moved, segment->out, count * element);
    }
  }

  static bool Varies(Verb verb) {
    return verb == Verb::kAllgather || verb == Verb::kAlltoall ||
           verb == Verb::kSparseAllreduce;
  }

  // Outputs of a size that is not known yet.
  void MoveLateOutputs(Batch* batch, const MovedPtr& moved) {
    if (!Varies(batch->verb)) return;
    const size_t buffers = batch->verb == Verb::kSparseAllreduce ? 2 : 1;
    std::vector<void*> fixed;
    std::vector<int64_t> row_bytes;
    for (const Segment& segment : batch->segments) {
      fixed.push_back(segment.out);
      if (buffers == 2) fixed.push_back(segment.out_ids);
      row_bytes.push_back(segment.row_count *
                          static_cast<int64_t>(SizeOf(batch->dtype)));
    }
    const auto given = std::move(batch->allocate);
    batch->allocate = [=](const RankCounts& rows, std::vector<void*>* outputs) {
      std::vector<void*> hosts = fixed;
      if (given) {
        hosts.clear();
        HVD_RETURN_IF_ERROR(given(rows, &hosts));
      }
      *outputs = hosts;
      if (hosts.size() != row_bytes.size() * buffers) return Status::Ok();
      for (size_t i = 0; i < row_bytes.size(); ++i) {
        const int64_t total =
            std::accumulate(rows[i].begin(), rows[i].end(), int64_t{0});
        void* const device =
            MoveOutput(moved.get(), hosts[i * buffers], total * row_bytes[i]);
        (*outputs)[i * buffers] = device;  // ids are in host memory
        if (device == nullptr) continue;
        // The work of the tensor that had the memory before.
        const auto bytes = static_cast<size_t>(total * row_bytes[i]);
        gpu_->Compute([gpu = gpu_.get(), moved, device, bytes] {
          const std::vector<std::byte> old(bytes, std::byte{0x5a});
          gpu->gpu().Write(device, old.data(), bytes);
        });
      }
      return Status::Ok();
    };
  }

  const std::shared_ptr<TestGpu> gpu_;
  const std::unique_ptr<Transport> host_;
  const bool reads_in_stream_order_;
  std::vector<Reader> reading_;
  std::set<BatchId> running_;
  const std::unique_ptr<Transport> lane_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_ON_GPU_H_
