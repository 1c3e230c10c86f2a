// SPDX-License-Identifier: Apache-2.0
// Runs batches: windows of chunks, failures, detached batches.
#include "transport/collectives/staged_transport.h"

#include <algorithm>
#include <new>
#include <utility>

#include "transport/collectives/batch_check.h"
#include "transport/collectives/poison_words.h"

namespace hvd {
namespace {

// The most chunks of a batch that are on the wire at a time.
constexpr size_t kWindow = 4;
static_assert(kWindow < kChunkTags);
// Longer chunks are not faster.
constexpr int64_t kMostHeapChunkBytes = 4 << 20;

}  // namespace

ChunkLimits HeapChunks(int64_t bytes) {
  return {bytes, std::max(bytes, kMostHeapChunkBytes), "HVD_CHUNK_BYTES"};
}

StagedTransport::StagedTransport(std::unique_ptr<Wire> wire,
                                 std::vector<int> job_ranks, ChunkLimits chunks,
                                 std::shared_ptr<SpareCores> spare_cores)
    : job_ranks_(std::move(job_ranks)),
      chunks_(std::move(chunks)),
      spare_cores_(std::move(spare_cores)),
      wire_(std::move(wire)) {}

StagedTransport::~StagedTransport() {
  std::vector<StagingBuffer> staging;
  bool has_chunks = false;
  for (auto& [id, flight] : flights_) {
    has_chunks |= !flight.chunks.empty();
    for (auto& chunk : flight.chunks) {
      if (chunk->staging_bytes() > 0) staging.push_back(chunk->TakeStaging());
    }
  }
  if (has_chunks) wire_->Abandon(std::move(staging));
}

bool StagedTransport::within_host() const {
  return size() > 1 && wire_->hosts().host_count() == 1 &&
         wire_->zero_copy(rank() == 0 ? 1 : 0);
}

BatchId StagedTransport::Start(Batch batch, BatchDone done) {
  const BatchId id = next_id_++;
  Flight flight;
  flight.done = std::move(done);
  flight.status = CheckBatch(batch, rank(), size());
  if (flight.status.ok()) {
    const Status local_error = batch.local_error;
    flight.work = std::make_unique<BatchWork>(
        std::move(batch), id, chunks_.bytes, wire_.get(),
        spare_cores_ != nullptr ? spare_cores_->Threads() : nullptr);
    if (!local_error.ok()) flight.work->FailHere(local_error);
  }
  // The flight has its place last. Without memory it leaves nothing half made.
  flights_.emplace(id, std::move(flight));
  // Progress begins the first phase. If chunks were packed here, the leader's
  // messages to the peers about the batch would have to wait.
  return id;
}

bool StagedTransport::Progress() {
  std::vector<Call> calls;
  bool moved = false;
  wire_->Poll();
  if (wire_->status().ok()) {
    for (auto at = flights_.begin(); at != flights_.end();) {
      Flight& flight = at->second;
      moved |= AdvanceFlight(at->first, &flight);
      TakeDone(&flight, &calls);
      at = Finished(flight) ? flights_.erase(at) : std::next(at);
    }
  }
  if (!wire_->status().ok()) moved |= FailAll(wire_->status(), &calls);
  // These come last, because they may start and cancel batches.
  for (Call& call : calls) call.done(call.status);
  return moved || !calls.empty();
}

void StagedTransport::Cancel(BatchId id, const Status& why) {
  auto found = flights_.find(id);
  if (found == flights_.end() || !found->second.done) return;
  Flight& flight = found->second;
  if (flight.work != nullptr) flight.work->Fail({why.code(), rank()});
  flight.status = why;
  std::vector<Call> calls;
  TakeDone(&flight, &calls);
  for (Call& call : calls) call.done(call.status);
}

int StagedTransport::in_flight() const {
  return static_cast<int>(
      std::count_if(flights_.begin(), flights_.end(),
                    [&](const auto& entry) { return Counts(entry.second); }));
}

bool StagedTransport::TryBegin(Flight* flight) const {
  if (!flight->phases.empty()) return true;
  BatchWork* const work = flight->work.get();
  if (work == nullptr) return false;
  // A detached batch reads no input.
  const auto& are_ready = work->batch().inputs_are_ready;
  if (are_ready && !work->is_detached() && !are_ready()) return false;
  const auto& find_not_finite = work->batch().find_not_finite;
  if (find_not_finite && !work->is_detached()) {
    const int segment = find_not_finite(work->batch().segments);
    if (segment >= 0) {
      work->Fail({StatusCode::kInvalidArgument, rank(), segment});
    }
  }
  flight->phases.push_back(NewFirstPhase(work));
  return true;
}

bool StagedTransport::AdvanceFlight(BatchId id, Flight* flight) {
  if (flight->is_broken || !TryBegin(flight)) return false;
  bool moved = StartChunks(id, flight);
  for (auto& chunk : flight->chunks) {
    if (chunk->finished()) continue;
    const bool was_done = chunk->output_done();
    moved |= chunk->Advance();
    if (chunk->output_done() && !was_done) ++flight->outputs_done;
  }
  while (!flight->chunks.empty() && flight->chunks.front()->finished()) {
    wire_->staging().Give(flight->chunks.front()->TakeStaging());
    flight->chunks.pop_front();
    moved = true;
  }
  EndPhase(flight);
  return moved | StartChunks(id, flight);
}

void StagedTransport::EndPhase(Flight* flight) {
  if (flight->complete ||
      flight->outputs_done < flight->phase()->chunk_count()) {
    return;
  }
  std::unique_ptr<Phase> next = flight->phase()->MakeNext();
  if (next == nullptr) {
    flight->complete = true;
    return;
  }
  flight->phases.push_back(std::move(next));
  flight->next_chunk = flight->outputs_done = 0;
}

bool StagedTransport::IsLong(const Flight& flight) {
  return flight.work != nullptr && flight.work->batch().is_long;
}

BatchId StagedTransport::Oldest() const {
  const auto oldest =
      std::find_if(flights_.begin(), flights_.end(),
                   [](const auto& entry) { return !IsLong(entry.second); });
  return oldest == flights_.end() ? next_id_ : oldest->first;
}

bool StagedTransport::HasLongBefore(BatchId id) const {
  return std::any_of(flights_.begin(), flights_.find(id),
                     [](const auto& entry) { return IsLong(entry.second); });
}

bool StagedTransport::StartChunks(BatchId id, Flight* flight) {
  const BatchId oldest = Oldest();
  // The wire matches moves of one tag in order, so long ones must not mix.
  if (flight->work->batch().is_long ? HasLongBefore(id)
                                    : id >= oldest + kBatchTags) {
    return false;
  }
  bool moved = false;
  while (flight->chunks.size() < kWindow &&
         flight->next_chunk < flight->phase()->chunk_count()) {
    auto chunk = flight->phase()->NewChunk(flight->next_chunk);
    const size_t bytes = chunk->staging_bytes();
    StagingBuffer staging;
    if (bytes > 0) {
      const Urgency urgency = id == oldest                  ? Urgency::kOldest
                              : bytes <= kSmallStagingBytes ? Urgency::kSmall
                                                            : Urgency::kCanWait;
      staging = wire_->staging().Take(bytes, urgency);
      if (staging.data == nullptr) {  // wait for another chunk to give back
        // Without results it may wait for ever: until this rank has ended.
        if (flight->done) CheckMemoryWillCome(urgency);
        break;
      }
    }
    // The chunk has its place first. The wire uses its memory although Start
    // throws.
    flight->chunks.push_back(std::move(chunk));
    flight->is_broken = true;
    flight->chunks.back()->Start(std::move(staging));
    flight->is_broken = false;
    ++flight->next_chunk;
    moved = true;
  }
  return moved;
}

void StagedTransport::CheckMemoryWillCome(Urgency urgency) const {
  if (urgency != Urgency::kOldest) return;
  const auto has_some = [](const std::unique_ptr<Chunk>& chunk) {
    return chunk->staging_bytes() > 0;
  };
  const bool some_is_used =
      std::any_of(flights_.begin(), flights_.end(), [&](const auto& entry) {
        const auto& chunks = entry.second.chunks;
        return std::any_of(chunks.begin(), chunks.end(), has_some);
      });
  if (!some_is_used) throw std::bad_alloc();
}

void StagedTransport::TakeDone(Flight* flight, std::vector<Call>* calls) {
  if (!flight->done) return;
  if (flight->status.ok() && flight->work->is_detached()) {
    const Status& own = flight->work->local_error();
    flight->status =
        own.ok() ? ExplainPoison(flight->work->poison(), flight->work->batch(),
                                 job_ranks_, rank())
                 : own;
  }
  if (flight->status.ok() && !flight->complete) return;
  calls->push_back({std::exchange(flight->done, nullptr), flight->status});
}

bool StagedTransport::Finished(const Flight& flight) const {
  if (flight.done) return false;
  return flight.work == nullptr || (flight.chunks.empty() && flight.complete);
}

bool StagedTransport::FailAll(const Status& why, std::vector<Call>* calls) {
  const size_t before = calls->size();
  for (auto& [id, flight] : flights_) {
    if (flight.work != nullptr) {
      flight.work->Fail({StatusCode::kInternal, rank()});
    }
    if (flight.status.ok()) flight.status = why;
    TakeDone(&flight, calls);
  }
  return calls->size() > before;
}

}  // namespace hvd
