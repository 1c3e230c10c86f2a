// SPDX-License-Identifier: Apache-2.0
// From agreed batches to their lanes, and back to each entry's done.
#include "core/executor.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/executor_batch.h"
#include "core/quoted.h"
#include "core/rows.h"
#include "core/trace.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// Null: its done is called at once, or has been called.
const Runner* RunnerOf(const Outstanding& tensor) {
  return tensor.cancelled ? nullptr : tensor.entry->runner;
}

// Mostly there is one.
bool Contains(const std::vector<const Runner*>& runners, const Runner* runner) {
  return std::find(runners.begin(), runners.end(), runner) != runners.end();
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
    if (runner != nullptr && !Contains(runners, runner)) {
      runners.push_back(runner);
    }
  }
  return runners;
}

// Gives a runner all dones of its entries.
void RunDones(const std::shared_ptr<const ReadyBatch>& work,
              const Runner* runner) {
  // A copy. All may be done, and the original gone, before the call returns.
  const Runner run = *runner;
  run([work, runner] {
    for (const Outstanding& tensor : work->tensors) {
      if (RunnerOf(tensor) == runner) tensor.entry->done(Status::Ok());
    }
  });
}

}  // namespace

Executor::Executor(LaneTable lanes, bool check_finite)
    : check_finite_(check_finite), lanes_(std::move(lanes)) {}

Executor::~Executor() = default;

void Executor::Execute(ReadyBatch ready) {
  std::shared_ptr<const ReadyBatch> work;
  try {
    work = std::make_shared<const ReadyBatch>(std::move(ready));
    Begin(work);
  } catch (const std::bad_alloc&) {
    // Nobody else has its entries.
    if (work) running_.erase(work->log_number);
    for (const Outstanding& tensor : (work ? *work : ready).tensors) {
      if (tensor.cancelled) continue;
      tensor.entry->done(ResourceExhausted(
          Quoted(tensor.entry->request.key.name) +
          " cannot complete: this rank is out of memory; start fewer ranks on "
          "its host, or train on smaller batches."));
    }
    throw;
  }
}

void Executor::Begin(const std::shared_ptr<const ReadyBatch>& work) {
  const Signature& head = work->tensors[0].entry->request.signature;
  const auto seen = std::make_shared<Seen>();
  if (trace_ != nullptr) {
    seen->times = trace_->NewTimes(serial_, work->log_number);
  }
  Transport* const lane = lanes_.of(head.memory);
  if (!RulesOf(head.verb).uses_wire) {
    if (lane != nullptr && head.memory != MemoryKind::kHost) {
      lane->Meet(work->absent.empty());
    }
    return Finish(work, *seen, Status::Ok());
  }
  if (lane == nullptr) {
    return Finish(
        work, *seen,
        Internal("no transport for the memory of " +
                 Quoted(work->tensors[0].entry->request.key.name) + "."));
  }
  const uint64_t number = work->log_number;
  Batch batch = MakeBatch(*work, check_finite_);
  seen->within_host = lane->within_host();
  batch.times = seen->times;
  if (trace_ != nullptr) batch.counters = trace_->counters(head.verb);
  if (batch.allocate) batch.allocate = CountingRows(batch.allocate, work, seen);
  // The batch has its place in running_ first: once the transport has it,
  // nothing more may go wrong here.
  Running& running = running_[number];
  running.lane = lane;
  running.batch = work;
  // A transport does not call done from Start. Cancel calls it at once.
  running.id =
      lane->Start(std::move(batch), [this, work, seen](const Status& status) {
        // Abandon may have done so.
        if (running_.count(work->log_number) > 0) Finish(work, *seen, status);
      });
}

Executor::Allocate Executor::CountingRows(
    Allocate allocate, std::shared_ptr<const ReadyBatch> work,
    std::shared_ptr<Seen> seen) {
  return [allocate = std::move(allocate), work = std::move(work),
          seen = std::move(seen)](const RankCounts& rows,
                                  std::vector<void*>* outputs) {
    HVD_RETURN_IF_ERROR(allocate(rows, outputs));
    auto of_segment = rows.begin();
    for (const Outstanding& tensor : work->tensors) {
      const size_t segments = tensor.entry->request.signature.shapes.size();
      for (size_t i = 0; i < segments; ++i, ++of_segment) {
        if (tensor.cancelled) continue;  // nobody gets them
        seen->rows =
            std::accumulate(of_segment->begin(), of_segment->end(), seen->rows);
      }
    }
    return Status::Ok();
  };
}

void Executor::Finish(const std::shared_ptr<const ReadyBatch>& work,
                      const Seen& seen, const Status& status) {
  running_.erase(work->log_number);
  std::vector<const Runner*> runners;
  // Nobody else answers the entries now, whatever happens.
  bool has_memory = true;
  try {
    NoteFinished(*work, seen, status);
    // A failure must not wait for a thread that perhaps waits for this rank's
    // end.
    if (status.ok()) runners = RunnersOf(work->tensors);
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  for (const Runner*& runner : runners) {
    try {
      RunDones(work, runner);
    } catch (const std::bad_alloc&) {
      has_memory = false;
      runner = nullptr;
    }
  }
  for (const Outstanding& tensor : work->tensors) {
    if (tensor.cancelled) continue;
    const Runner* const runner = RunnerOf(tensor);
    const bool runs = runner != nullptr && Contains(runners, runner);
    if (!runs) tensor.entry->done(status);
  }
  if (!has_memory) throw std::bad_alloc();
}

void Executor::NoteFinished(const ReadyBatch& work, const Seen& seen,
                            const Status& status) {
  if (trace_ != nullptr) {
    trace_->Finished(serial_, work,
                     {status, seen.rows, seen.times.get(), seen.within_host});
  }
  if (status.code() == StatusCode::kInternal) {
    NoteBreakdown(work.log_number, status);
  }
}

bool Executor::Progress() {
  bool moved = false;
  for (const auto& lane : lanes_.transports) {
    if (lane != nullptr) moved |= lane->Progress();
  }
  return moved;
}

int Executor::in_flight() const {
  int count = 0;
  for (const auto& lane : lanes_.transports) {
    if (lane != nullptr) count += lane->in_flight();
  }
  return count;
}

int Executor::executed_in_flight() const {
  int count = in_flight();
  for (const auto& lane : lanes_.transports) {
    if (lane != nullptr) count -= lane->own_in_flight();
  }
  return count;
}

int Executor::needed_in_flight() const {
  const int count = in_flight() - cancelled_on_gpus_;
  return std::accumulate(
      cancelled_on_host_.begin(), cancelled_on_host_.end(), count,
      [&](int needed, BatchId id) { return needed - host().count_of(id); });
}

void Executor::Tune(const Tuning& tuning) {
  if (tuning.chunk_bytes > 0) host().SetChunkBytes(tuning.chunk_bytes);
}

const Request* Executor::FindRunning(uint64_t ticket) const {
  for (const auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.batch->tensors) {
      if (tensor.entry->ticket == ticket && !tensor.cancelled) {
        return &tensor.entry->request;
      }
    }
  }
  return nullptr;
}

void Executor::AppendRunning(std::vector<std::string>* names) const {
  for (const auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.batch->tensors) {
      if (!tensor.cancelled) names->push_back(tensor.entry->request.key.name);
    }
  }
}

std::vector<Executor::OnGpu> Executor::on_gpus() const {
  std::vector<OnGpu> found;
  for (const auto& lane : lanes_.transports) {
    if (lane == nullptr) continue;
    for (const BatchId id : lane->with_gpu()) found.push_back({lane.get(), id});
  }
  return found;
}

std::vector<std::string> Executor::NamesOf(const OnGpu& batch) const {
  std::vector<std::string> names;
  for (const auto& [number, running] : running_) {
    if (running.lane != batch.lane || running.id != batch.id) continue;
    for (const Outstanding& tensor : running.batch->tensors) {
      if (!tensor.cancelled) names.push_back(tensor.entry->request.key.name);
    }
  }
  return names;
}

}  // namespace hvd
