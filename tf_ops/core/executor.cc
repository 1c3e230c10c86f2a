// SPDX-License-Identifier: Apache-2.0
// From agreed entries to a scatter list, and back to each entry's done.
#include "core/executor.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cpu/finite.h"

namespace hvd {
namespace {

// Outputs of an entry that nobody waits for any more.
struct Scratch {
  std::vector<std::vector<std::byte>> buffers;

  void* New(int64_t bytes) {
    buffers.emplace_back(static_cast<size_t>(bytes));
    return buffers.back().data();
  }
};

// The framework finds the memory. If it finds none, only the batch fails.
template <typename Allocate>
Status WithMemory(const Allocate& allocate) {
  try {
    return allocate();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("this rank has no memory for the result.");
  }
}

int64_t RowCount(const Shape& shape) {
  return CountOf(Shape(shape.begin() + 1, shape.end()));
}

// A verb that only moves data moves bytes, so that tensors of different types
// fuse.
int64_t UnitsPerElement(const Signature& signature) {
  return signature.verb == Verb::kAllreduce
             ? 1
             : static_cast<int64_t>(SizeOf(signature.dtype));
}

Batch HeadOf(const Signature& signature) {
  Batch batch;
  batch.verb = signature.verb;
  if (signature.verb == Verb::kAllreduce) {
    batch.dtype = signature.dtype;
    batch.wire_dtype = signature.wire_dtype;
    batch.reduce_op = signature.reduce_op;
    batch.prescale = signature.prescale;
    batch.postscale = signature.postscale;
  } else {
    batch.dtype = batch.wire_dtype = DataType::kUint8;
  }
  batch.root = signature.root;
  return batch;
}

// Shapes of the gathered outputs. `counts` gets elements of [shape][rank].
std::vector<Shape> GatheredShapes(
    const Signature& signature,
    const std::vector<std::vector<int64_t>>& first_dims,
    std::vector<std::vector<int64_t>>* counts) {
  std::vector<Shape> shapes = signature.shapes;
  counts->resize(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t row = RowCount(shapes[i]);
    shapes[i][0] = 0;
    for (int64_t rows : first_dims[i]) {
      shapes[i][0] += rows;
      (*counts)[i].push_back(rows * row);
    }
  }
  return shapes;
}

// Gathered bytes have no type on the wire, so they are checked before. Returns
// the first of the call's inputs that has a NaN or an infinity, or -1.
int NotFiniteInput(const Entry& entry) {
  const Signature& signature = entry.request.signature;
  if (signature.verb != Verb::kAllgather) return -1;
  for (size_t i = 0; i < signature.shapes.size(); ++i) {
    if (!AllFinite(signature.dtype, entry.inputs[i],
                   CountOf(signature.shapes[i]))) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Null: its done is called at once, or has been called.
const Runner* RunnerOf(const Outstanding& tensor) {
  return tensor.cancelled ? nullptr : tensor.entry->runner;
}

// The runners of a batch. Each is given all dones of its own entries at once.
//
// What follows a done is work for the framework's threads. A done that is
// called here would wake one of them. That one would take this thread's core
// and sleep again. A runner gets no other runner's dones: all its threads may
// be waiting for what such a done brings about.
std::vector<const Runner*> RunnersOf(const std::vector<Outstanding>& tensors) {
  std::vector<const Runner*> runners;
  for (const Outstanding& tensor : tensors) {
    const Runner* const runner = RunnerOf(tensor);
    // Mostly there is one.
    if (runner != nullptr &&
        std::find(runners.begin(), runners.end(), runner) == runners.end()) {
      runners.push_back(runner);
    }
  }
  return runners;
}

}  // namespace

// What must live until the wire is done.
struct Executor::Work {
  ReadyBatch ready;
  Scratch scratch;
};

Executor::Executor(std::unique_ptr<Transport> host_transport, bool check_finite)
    : check_finite_(check_finite), transport_(std::move(host_transport)) {}

Executor::~Executor() = default;

void Executor::Execute(ReadyBatch ready) {
  auto work = std::make_shared<Work>();
  work->ready = std::move(ready);
  std::vector<Outstanding>& tensors = work->ready.tensors;
  Batch batch = HeadOf(tensors[0].entry->request.signature);
  batch.check_finite = check_finite_;
  batch.segments.reserve(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    Entry& entry = *tensors[t].entry;
    const Signature& signature = entry.request.signature;
    const int64_t units = UnitsPerElement(signature);
    const int64_t unit_bytes =
        static_cast<int64_t>(SizeOf(signature.dtype)) / units;
    std::vector<Shape> gathered;
    std::vector<std::vector<int64_t>> counts;
    if (signature.verb == Verb::kAllgather) {
      gathered = GatheredShapes(signature, work->ready.first_dims[t], &counts);
      if (!tensors[t].cancelled && batch.local_error.ok()) {
        batch.local_error = WithMemory(
            [&] { return entry.allocate(gathered, &entry.outputs); });
      }
    }
    if (check_finite_ && batch.not_finite < 0 && !tensors[t].cancelled) {
      const int input = NotFiniteInput(entry);
      if (input >= 0) {
        batch.not_finite = static_cast<int>(batch.segments.size()) + input;
      }
    }
    const std::vector<Shape>& out_shapes =
        gathered.empty() ? signature.shapes : gathered;
    for (size_t i = 0; i < signature.shapes.size(); ++i) {
      Segment segment;
      segment.count = CountOf(signature.shapes[i]) * units;
      segment.in = entry.inputs[i];
      segment.name = &entry.request.key.name;
      if (tensors[t].cancelled && batch.local_error.ok()) {
        batch.local_error = WithMemory([&] {
          segment.out =
              work->scratch.New(CountOf(out_shapes[i]) * units * unit_bytes);
          return Status::Ok();
        });
      } else if (batch.local_error.ok()) {
        segment.out = entry.outputs[i];
      }
      batch.segments.push_back(segment);
      if (signature.verb != Verb::kAllgather) continue;
      for (int64_t& count : counts[i]) count *= units;
      batch.counts.push_back(std::move(counts[i]));
    }
  }
  const uint64_t number = work->ready.log_number;
  // A transport does not call done from Start, so the batch is in running_ by
  // then. Cancel calls it at once.
  const BatchId id = transport_->Start(
      std::move(batch),
      [this, work](const Status& status) { Finish(work, status); });
  running_[number] = {id, work, 0, Status::Ok(), {}};
}

void Executor::Finish(const std::shared_ptr<const Work>& work,
                      const Status& status) {
  const uint64_t number = work->ready.log_number;
  running_.erase(number);
  if (status.code() == StatusCode::kInternal &&
      (!breakdown_.has_value() || number < breakdown_->log_number)) {
    breakdown_ = Breakdown{number, status};
  }
  const std::vector<Outstanding>& tensors = work->ready.tensors;
  // A failure must not wait for a thread that perhaps waits for this rank's
  // end.
  std::vector<const Runner*> runners;
  if (status.ok()) runners = RunnersOf(tensors);
  for (const Runner* const runner : runners) {
    // A copy. All may be done, and the original gone, before the call returns.
    const Runner run = *runner;
    run([work, runner] {
      for (const Outstanding& tensor : work->ready.tensors) {
        if (RunnerOf(tensor) == runner) tensor.entry->done(Status::Ok());
      }
    });
  }
  for (const Outstanding& tensor : tensors) {
    if (tensor.cancelled) continue;
    if (!status.ok() || RunnerOf(tensor) == nullptr) tensor.entry->done(status);
  }
}

bool Executor::Progress() { return transport_->Progress(); }

Status Executor::Tune(const Tuning& tuning) {
  const ChunkLimits limits = transport_->chunk_limits();
  if (tuning.chunk_bytes < 0 || tuning.chunk_bytes > limits.most_bytes) {
    return Internal("the log asks for chunks of " +
                    std::to_string(tuning.chunk_bytes) +
                    " bytes; this rank has memory for " +
                    std::to_string(limits.most_bytes) + ".");
  }
  if (tuning.chunk_bytes > 0) transport_->SetChunkBytes(tuning.chunk_bytes);
  return Status::Ok();
}

const Request* Executor::FindRunning(uint64_t ticket) const {
  for (const auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.work->ready.tensors) {
      if (tensor.entry->ticket == ticket && !tensor.cancelled) {
        return &tensor.entry->request;
      }
    }
  }
  return nullptr;
}

void Executor::Unwant(uint64_t ticket, const Status& why,
                      Clock::time_point limit) {
  for (auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.work->ready.tensors) {
      if (tensor.entry->ticket != ticket || tensor.cancelled) continue;
      if (running.unwanted++ > 0) return;
      running.why = why;
      running.limit = limit;
      return;
    }
  }
}

void Executor::EndUnwanted(Clock::time_point now) {
  std::vector<std::pair<BatchId, Status>> due;
  for (const auto& [number, running] : running_) {
    if (running.unwanted == 0 || now < running.limit) continue;
    const std::vector<Outstanding>& tensors = running.work->ready.tensors;
    const auto wanted = std::count_if(
        tensors.begin(), tensors.end(),
        [](const Outstanding& tensor) { return !tensor.cancelled; });
    if (running.unwanted < static_cast<size_t>(wanted)) continue;
    due.emplace_back(running.id, running.why);
  }
  // Cancel takes them out of running_.
  for (const auto& [id, why] : due) transport_->Cancel(id, why);
}

void Executor::AppendRunning(std::vector<std::string>* names) const {
  for (const auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.work->ready.tensors) {
      if (!tensor.cancelled) names->push_back(tensor.entry->request.key.name);
    }
  }
}

void Executor::CancelAfter(uint64_t log_number, const Status& why) {
  std::vector<BatchId> late;
  for (const auto& [number, running] : running_) {
    if (number > log_number) late.push_back(running.id);
  }
  // They would leave the wire only if the ended member took part.
  cancelled_ += static_cast<int>(late.size());
  for (BatchId id : late) transport_->Cancel(id, why);
}

}  // namespace hvd
