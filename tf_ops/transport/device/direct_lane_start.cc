// SPDX-License-Identifier: Apache-2.0
// The part of DirectLane for what a batch needs of the host transport before it
// is launched, and behind it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rows.h"
#include "transport/collectives/batch_check.h"
#include "transport/device/direct_lane.h"
#include "transport/device/gpu_fusion.h"
#include "transport/device/outputs.h"
#include "transport/device/small_batch.h"

namespace hvd {

Status DirectLane::CheckGpus(const Batch& batch) const {
  HVD_RETURN_IF_ERROR(batch.local_error);
  HVD_RETURN_IF_ERROR(broken());
  HVD_RETURN_IF_ERROR(CheckBatch(batch, rank(), size()));
  for (const Segment& segment : batch.segments) {
    if (segment.count == 0) continue;
    if (segment.ready == nullptr) {
      return Internal("a tensor on a GPU has no stream.");
    }
    HVD_RETURN_IF_ERROR(queue_->stream()->CheckGpu(segment.ready));
  }
  const auto ready = ReadyOf(batch);
  return ready == nullptr ? Status::Ok() : queue_->stream()->CheckGpu(ready);
}

void DirectLane::StartFlight(BatchId id, Batch batch, BatchDone done) {
  const auto flight = std::make_shared<Flight>();
  flights_[id] = flight;
  flight->done = std::move(done);
  flight->batch = std::move(batch);
  Status error = CheckGpus(flight->batch);
  // Peers must not wait for a rank that finds no memory.
  if (error.ok()) error = FindBuffer(flight.get());
  const Verb verb = flight->batch.verb;
  if (verb == Verb::kSparseAllreduce) {
    StartIds(flight, error);
  } else if (Varies(verb)) {
    StartSizes(flight, error);
  }
  StartBefore(flight, error);
  if (decision_.is_by_host()) StartTrip(flight);
  StartBehind(flight.get());
}

Status DirectLane::FindBuffer(Flight* flight) {
  Batch& batch = flight->batch;
  if (Varies(batch.verb)) return Status::Ok();
  flight->is_fused = decision_.is_by_host() ||
                     (decision_.all_have_kernels() && IsFused(batch, size()));
  if (decision_.is_by_host()) return FindMemoryOfShard(flight);
  if (flight->is_fused) return TakeBuffer(flight, FusionBytes(batch));
  std::vector<void*> outputs;
  std::vector<int64_t> bytes;
  for (const Segment& segment : batch.segments) {
    outputs.push_back(segment.out);
    bytes.push_back(OutputCount(batch, segment, rank(), size()) *
                    static_cast<int64_t>(SizeOf(batch.dtype)));
  }
  HVD_RETURN_IF_ERROR(PlaceUnwanted(flight, bytes, &outputs));
  for (size_t s = 0; s < outputs.size(); ++s) {
    batch.segments[s].out = outputs[s];
  }
  return Status::Ok();
}

Status DirectLane::PlaceUnwanted(Flight* flight,
                                 const std::vector<int64_t>& bytes,
                                 std::vector<void*>* outputs) {
  int64_t most = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if ((*outputs)[i] == nullptr) most = std::max(most, bytes[i]);
  }
  if (most == 0) return Status::Ok();
  HVD_RETURN_IF_ERROR(TakeBuffer(flight, most));
  for (void*& output : *outputs) {
    if (output == nullptr) output = flight->buffer->memory.get();
  }
  return Status::Ok();
}

Status DirectLane::TakeBuffer(Flight* flight, int64_t bytes) {
  const auto ready = ReadyOf(flight->batch);
  if (ready == nullptr) return Internal("a tensor on a GPU has no stream.");
  auto found = queue_->BufferOf(static_cast<size_t>(bytes), ready);
  if (!found.ok()) {
    const std::string* const name = NameOf(flight->batch);
    return Status(found.status().code(),
                  found.status().message() +
                      (name == nullptr ? "" : "; the first is " + *name));
  }
  flight->buffer = std::move(found.value());
  return Status::Ok();
}

void DirectLane::StartSizes(const FlightPtr& flight, const Status& error) {
  const Batch& batch = flight->batch;
  const auto sizes = flight->sizes = std::make_shared<FlightSizes>();
  if (batch.verb == Verb::kAllgather && !batch.rows.empty()) {
    sizes->rows = batch.rows;
    sizes->is_known = true;
    return;
  }
  const auto ranks = static_cast<size_t>(size());
  const size_t segments = batch.segments.size();
  const bool gathers = batch.verb == Verb::kAllgather;
  std::vector<int64_t> mine;
  for (size_t rank = 0; rank < (gathers ? 1 : ranks); ++rank) {
    for (size_t s = 0; s < segments && error.ok(); ++s) {
      mine.push_back(gathers ? batch.segments[s].rows : batch.rows[s][rank]);
    }
  }
  mine.resize((gathers ? 1 : ranks) * segments);
  sizes->sent = std::move(mine);
  sizes->received.resize(ranks * segments);
  Batch numbers = SmallBatch(batch.verb, DataType::kInt64, sizes->sent.data(),
                             sizes->received.data(), sizes->sent.size());
  // A row is what goes to one rank.
  const auto row = static_cast<int64_t>(segments);
  numbers.segments[0].row_count = row;
  numbers.segments[0].rows = gathers ? 1 : size();
  numbers.segments[0].name = NameOf(batch);
  numbers.rows = {std::vector<int64_t>(ranks, 1)};
  numbers.local_error = error;
  sizes->host_id = host_->Start(
      std::move(numbers), [flight, sizes, segments](const Status& status) {
        sizes->is_known = true;
        sizes->status = status;
        // What goes before it fails as well, and ends it.
        if (flight->status.ok()) flight->status = status;
        sizes->rows.resize(segments);
        for (size_t i = 0; i < sizes->received.size(); ++i) {
          sizes->rows[i % segments].push_back(sizes->received[i]);
        }
      });
}

void DirectLane::StartIds(const FlightPtr& flight, const Status& error) {
  const auto sizes = flight->sizes = std::make_shared<FlightSizes>();
  const auto rows = sizes->gpu_rows =
      std::make_shared<GpuRows>(&flight->batch, rank(), size(), error.ok());
  Batch ids = SmallBatch(Verb::kAllgather, DataType::kUint8,
                         rows->sent().data(), nullptr, rows->sent().size());
  ids.segments[0].name = NameOf(flight->batch);
  ids.local_error = error;
  if (const std::vector<int64_t> bytes = rows->MessageBytes(); !bytes.empty()) {
    ids.rows = {bytes};
    ids.segments[0].out = rows->Receive(bytes);
  } else {
    ids.allocate = [rows](const RankCounts& of_ranks,
                          std::vector<void*>* outputs) {
      outputs->push_back(rows->Receive(of_ranks[0]));
      return Status::Ok();
    };
  }
  sizes->host_id =
      host_->Start(std::move(ids), [flight, sizes](const Status& status) {
        sizes->is_known = true;
        sizes->status = status;
        // What goes before it fails as well, and ends it.
        if (flight->status.ok()) flight->status = status;
      });
}

void DirectLane::StartBefore(const FlightPtr& flight, const Status& error) {
  Propose(flight.get());
  Batch number = LargestOf(DataType::kInt64, &flight->place);
  number.local_error = error;
  number.segments[0].name = NameOf(flight->batch);
  if (flight->sizes != nullptr) {
    number.inputs_are_ready = [sizes = flight->sizes] {
      return sizes->has_outputs;
    };
  }
  flight->before =
      host_->Start(std::move(number), [this, flight](const Status& status) {
        if (flight->status.ok()) flight->status = status;
        if (!status.ok()) return Leave(flight.get());
        queue_->order().Settle(flight->proposed, flight->place);
        flight->stage = Stage::kMet;
      });
}

void DirectLane::Propose(Flight* flight) {
  flight->proposed = queue_->order().Begin(owner_.set_id);
  flight->place = flight->proposed;
}

bool DirectLane::FindOutputs(Flight* flight) {
  FlightSizes* const sizes = flight->sizes.get();
  if (sizes == nullptr || !sizes->is_known || sizes->has_outputs) return false;
  sizes->has_outputs = true;
  if (!sizes->status.ok()) return true;
  sizes->status = AllocateOutputs(flight);
  // Peers must not wait for this rank.
  if (!sizes->status.ok()) host_->Cancel(flight->before, sizes->status);
  return true;
}

Status DirectLane::AllocateOutputs(Flight* flight) {
  const Batch& batch = flight->batch;
  FlightSizes& sizes = *flight->sizes;
  if (sizes.gpu_rows != nullptr) {
    HVD_RETURN_IF_ERROR(sizes.gpu_rows->Read());
    sizes.rows = sizes.gpu_rows->ResultRows();
  }
  const size_t buffers = sizes.gpu_rows != nullptr ? 2 : 1;
  if (batch.allocate) {
    HVD_RETURN_IF_ERROR(batch.allocate(sizes.rows, &sizes.outputs));
  } else {
    for (const Segment& segment : batch.segments) {
      sizes.outputs.push_back(segment.out);
      if (buffers == 2) sizes.outputs.push_back(segment.out_ids);
    }
  }
  if (sizes.outputs.size() != batch.segments.size() * buffers) {
    return Internal("a batch has " + std::to_string(batch.segments.size()) +
                    " segments but " + std::to_string(sizes.outputs.size()) +
                    " outputs.");
  }
  if (sizes.gpu_rows != nullptr) return FindMemoryOfRows(flight);
  std::vector<int64_t> bytes;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    int64_t rows = 0;
    for (const int64_t count : sizes.rows[s]) rows += count;
    bytes.push_back(rows * batch.segments[s].row_count *
                    static_cast<int64_t>(SizeOf(batch.dtype)));
  }
  return PlaceUnwanted(flight, bytes, &sizes.outputs);
}

Status DirectLane::FindMemoryOfRows(Flight* flight) {
  GpuRows& rows = *flight->sizes->gpu_rows;
  HVD_RETURN_IF_ERROR(TakeBuffer(flight, rows.gpu_bytes()));
  auto pinned = queue_->pinned().Take(static_cast<size_t>(rows.pinned_bytes()));
  if (!pinned.ok()) return pinned.status();
  flight->pinned = std::move(pinned.value());
  rows.Place(flight->buffer->memory.get(), flight->pinned.get(),
             flight->sizes->outputs);
  return Status::Ok();
}

void DirectLane::StartBehind(Flight* flight) {
  const auto nothing = std::make_shared<uint8_t>(uint8_t{0});
  Batch byte = LargestOf(DataType::kUint8, nothing.get());
  byte.inputs_are_ready = [is_left = flight->is_left] { return *is_left; };
  flight->behind = host_->Start(std::move(byte), [nothing](const Status&) {});
}

}  // namespace hvd
