// SPDX-License-Identifier: Apache-2.0
// The way of a batch to the host transport and back.
#include "transport/device/host_staging.h"

#include <algorithm>
#include <utility>

#include "transport/device/outputs.h"

namespace hvd {

HostStaging::HostStaging(Transport* host, std::shared_ptr<Device> device,
                         std::function<void()> wake, int64_t least_piece_bytes)
    : host_(host),
      wake_(std::move(wake)),
      least_piece_bytes_(least_piece_bytes),
      pinned_(device, kKeepPinned),
      device_(std::move(device)) {}

HostStaging::~HostStaging() = default;

BatchId HostStaging::Start(Batch batch, BatchDone done) {
  const BatchId id = next_id_++;
  const FlightPtr flight = std::make_shared<Flight>();
  flights_[id] = flight;
  flight->done = std::move(done);
  Batch host_batch = batch;
  host_batch.memory = MemoryKind::kHost;
  flight->batch = std::move(batch);
  if (host_batch.local_error.ok()) {
    host_batch.local_error = OpenStreams(flight.get());
  }
  if (host_batch.local_error.ok() && flight->ready != nullptr) {
    host_batch.local_error = PlaceTensors(flight.get(), &host_batch);
  }
  if (Varies(host_batch.verb)) {
    host_batch.allocate = [this, flight](const RankCounts& rows,
                                         std::vector<void*>* outputs) {
      return AllocateOutputs(flight.get(), rows, outputs);
    };
  }
  for (std::vector<SegmentPart>& parts :
       CutIntoPieces(host_batch, least_piece_bytes_)) {
    flight->pieces.emplace_back().parts = std::move(parts);
  }
  for (size_t i = 0; i < flight->pieces.size(); ++i) {
    StartPiece(flight, host_batch, i);
  }
  return id;
}

void HostStaging::StartPiece(const FlightPtr& flight, const Batch& host_batch,
                             size_t number) {
  Piece& piece = flight->pieces[number];
  Batch batch = host_batch;
  batch.segments.clear();
  for (const SegmentPart& part : piece.parts) {
    batch.segments.push_back(PartOf(host_batch, part));
  }
  if (batch.local_error.ok() && flight->ready != nullptr) {
    batch.local_error = CopyIn(flight.get(), host_batch, &piece);
  }
  batch.inputs_are_ready = [flight, number] {
    return flight->pieces[number].copied_in == nullptr;
  };
  piece.host_id =
      host_->Start(std::move(batch), [flight, number](const Status& status) {
        flight->pieces[number].host_is_done = true;
        if (flight->status.ok()) flight->status = status;
      });
}

int HostStaging::in_flight() const {
  int count = 0;
  for (const auto& [id, flight] : flights_) {
    count += std::all_of(flight->pieces.begin(), flight->pieces.end(),
                         [](const Piece& piece) { return piece.host_is_done; });
  }
  return count;
}

std::vector<BatchId> HostStaging::with_gpu() const {
  std::vector<BatchId> found;
  for (const auto& [id, flight] : flights_) {
    const bool is_copied = std::any_of(
        flight->pieces.begin(), flight->pieces.end(), [](const Piece& piece) {
          return piece.copied_in != nullptr || piece.copied_out != nullptr;
        });
    if (is_copied) found.push_back(id);
  }
  return found;
}

int HostStaging::count_of(BatchId id) const {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return 0;
  const std::vector<Piece>& pieces = found->second->pieces;
  return static_cast<int>(
      std::count_if(pieces.begin(), pieces.end(),
                    [](const Piece& piece) { return !piece.host_is_done; }));
}

Status HostStaging::OpenStreams(Flight* flight) {
  bool is_on_gpu = false;
  for (const Segment& segment : flight->batch.segments) {
    if (segment.ready != nullptr) flight->ready = segment.ready;
    is_on_gpu |= segment.in != nullptr || segment.out != nullptr;
  }
  if (flight->ready == nullptr) {
    // The host must not touch what nobody says to be ready.
    return is_on_gpu ? Internal("a tensor on a GPU has no stream.")
                     : Status::Ok();
  }
  for (std::unique_ptr<DeviceStream>* stream : {&in_, &out_}) {
    if (*stream != nullptr) continue;
    auto made = device_->NewStream(flight->ready);
    if (!made.ok()) return made.status();
    *stream = std::move(made.value());
  }
  return Status::Ok();
}

Status HostStaging::CopyIn(Flight* flight, const Batch& host_batch,
                           Piece* piece) {
  const auto element = static_cast<int64_t>(SizeOf(host_batch.dtype));
  // What a broadcast overwrites need not be copied.
  const bool is_broadcast = host_batch.verb == Verb::kBroadcast;
  const bool is_root = is_broadcast && host_batch.root == rank();
  const bool has_inputs = !is_broadcast || is_root;
  std::vector<CopySegment> copies;
  for (const SegmentPart& part : piece->parts) {
    const Segment host = PartOf(host_batch, part);
    const Segment gpu = PartOf(flight->batch, part);
    const GroupSum& sum = flight->sums[part.segment];
    if (sum.groups != nullptr) {
      copies.push_back(
          {gpu.in, const_cast<void*>(sum.values), ListedCount(gpu) * element});
      piece->sums.push_back(sum);
    } else if (gpu.in != nullptr && has_inputs) {
      copies.push_back(
          {gpu.in, const_cast<void*>(host.in), gpu.count * element});
    }
    // A root's tensor is the caller's, who may change it once it has been read.
    if (host.out != nullptr && !(is_root && gpu.out == gpu.in)) {
      piece->copies_out.push_back(
          {host.out, gpu.out,
           OutputCount(host_batch, gpu, rank(), size()) * element});
    }
    if (gpu.ready != nullptr) HVD_RETURN_IF_ERROR(in_->Wait(gpu.ready));
  }
  HVD_RETURN_IF_ERROR(in_->CopyBytes(copies));
  auto event = in_->Record(wake_);
  if (!event.ok()) return event.status();
  piece->copied_in = std::move(event.value());
  return Status::Ok();
}

bool HostStaging::Progress() {
  std::vector<Call> calls;
  bool moved = false;
  for (auto at = flights_.begin(); at != flights_.end();) {
    const FlightPtr flight = at->second;
    for (Piece& piece : flight->pieces) moved |= Advance(flight.get(), &piece);
    if (IsDone(*flight)) {
      calls.push_back({std::move(flight->done), flight->status});
      at = flights_.erase(at);
    } else {
      ++at;
    }
  }
  // These come last, because they may start and cancel batches.
  for (Call& call : calls) call.done(call.status);
  return moved || !calls.empty();
}

bool HostStaging::Advance(Flight* flight, Piece* piece) {
  bool moved = false;
  if (piece->copied_in != nullptr && IsReached(&piece->copied_in, flight)) {
    moved = true;
    // Peers must not wait for what this GPU cannot give.
    if (!flight->status.ok()) CancelPieces(*flight, flight->status);
    for (const GroupSum& sum : piece->sums) {
      SumGroups(flight->batch.dtype, *sum.groups, sum.values, sum.row_count,
                sum.sums);
    }
    piece->sums.clear();
  }
  if (piece->copied_out != nullptr) {
    return IsReached(&piece->copied_out, flight) || moved;
  }
  if (piece->host_is_done && flight->status.ok() &&
      !piece->copies_out.empty()) {
    CopyOut(flight, piece);
    moved = true;
  }
  return moved;
}

bool HostStaging::IsReached(std::unique_ptr<DeviceEvent>* event,
                            Flight* flight) {
  const Result<bool> reached = (*event)->IsReached();
  if (reached.ok() && !reached.value()) return false;
  if (!reached.ok() && flight->status.ok()) flight->status = reached.status();
  event->reset();
  return true;
}

void HostStaging::CopyOut(Flight* flight, Piece* piece) {
  Status status;
  if (flight->outputs_are_late) status = out_->CatchUp(flight->ready);
  if (status.ok()) status = out_->CopyBytes(piece->copies_out);
  piece->copies_out.clear();
  if (status.ok()) {
    auto event = out_->Record(wake_);
    if (event.ok()) piece->copied_out = std::move(event.value());
    status = event.status();
  }
  flight->status = status;
}

bool HostStaging::IsDone(const Flight& flight) {
  return std::all_of(
      flight.pieces.begin(), flight.pieces.end(), [&](const Piece& piece) {
        return piece.host_is_done && piece.copied_in == nullptr &&
               piece.copied_out == nullptr &&
               (!flight.status.ok() || piece.copies_out.empty());
      });
}

void HostStaging::Cancel(BatchId id, const Status& why) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  const FlightPtr flight = found->second;
  if (flight->status.ok()) flight->status = why;
  CancelPieces(*flight, why);
  if (!IsDone(*flight)) return;  // the GPU copies; Progress ends it
  const BatchDone done = std::move(flight->done);
  flights_.erase(found);
  done(flight->status);
}

void HostStaging::CancelPieces(const Flight& flight, const Status& why) {
  // A piece that is done is not known to the host any more.
  for (const Piece& piece : flight.pieces) host_->Cancel(piece.host_id, why);
}

}  // namespace hvd
