// SPDX-License-Identifier: Apache-2.0
// Where tensors are in pinned memory, and the way of a batch there and back.
#include "transport/device/host_staging.h"

#include <algorithm>
#include <utility>

#include "transport/device/outputs.h"

namespace hvd {
namespace {

constexpr int64_t kAlignment = 64;

// Elements that `in` has, where rows of equal id are in it.
int64_t ListedCount(const Segment& segment) {
  return static_cast<int64_t>(segment.groups->places.size()) *
         segment.row_count;
}

// Whether an output may be where its input is.
bool IsInPlace(Verb verb) {
  return verb == Verb::kAllreduce || verb == Verb::kBroadcast;
}

}  // namespace

// Places of tensors in one block of pinned memory. First all are added, then
// the block is taken, and then each knows its address.
class HostStaging::Layout {
 public:
  // Returns the place's number. -1: the tensor has no memory on the GPU.
  int Add(const void* device, int64_t bytes) {
    if (device == nullptr) return -1;
    places_.push_back(end_);
    end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<int>(places_.size()) - 1;
  }

  // The block belongs to the flight.
  Status Take(PinnedMemory* pinned, Flight* flight) {
    if (end_ == 0) return Status::Ok();
    auto block = pinned->Take(static_cast<size_t>(end_));
    if (!block.ok()) return block.status();
    begin_ = block.value().get();
    flight->pinned.push_back(std::move(block.value()));
    return Status::Ok();
  }

  void* At(int place) const {
    return place < 0 ? nullptr : begin_ + places_[static_cast<size_t>(place)];
  }

 private:
  std::vector<int64_t> places_;
  int64_t end_ = 0;
  // Where nothing has any bytes, all are at a place that is not null.
  alignas(kAlignment) static inline std::byte nothing_;
  std::byte* begin_ = &nothing_;
};

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

Status HostStaging::PlaceTensors(Flight* flight, Batch* host_batch) {
  const auto element = static_cast<int64_t>(SizeOf(host_batch->dtype));
  struct Places {
    int in, listed, out;
  };
  Layout layout;
  std::vector<Places> places;
  for (const Segment& segment : host_batch->segments) {
    Places& place = places.emplace_back();
    place.in = layout.Add(segment.in, segment.count * element);
    place.listed = segment.groups == nullptr
                       ? -1
                       : layout.Add(segment.in, ListedCount(segment) * element);
    if (Varies(host_batch->verb) || segment.out == nullptr) {
      place.out = -1;
    } else if (IsInPlace(host_batch->verb) && place.in >= 0) {
      place.out = place.in;
    } else {
      place.out = layout.Add(
          segment.out,
          OutputCount(*host_batch, segment, rank(), size()) * element);
    }
  }
  HVD_RETURN_IF_ERROR(layout.Take(&pinned_, flight));
  for (size_t i = 0; i < places.size(); ++i) {
    Segment& segment = host_batch->segments[i];
    segment.in = layout.At(places[i].in);
    segment.out = layout.At(places[i].out);
    flight->sums.push_back({places[i].listed < 0 ? nullptr : segment.groups,
                            segment.row_count, layout.At(places[i].listed),
                            const_cast<void*>(segment.in)});
    segment.groups = nullptr;
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

Status HostStaging::AllocateOutputs(Flight* flight, const RankCounts& rows,
                                    std::vector<void*>* outputs) {
  const Batch& batch = flight->batch;
  const size_t buffers = batch.verb == Verb::kSparseAllreduce ? 2 : 1;
  std::vector<void*> given;
  if (batch.allocate) {
    HVD_RETURN_IF_ERROR(batch.allocate(rows, &given));
  } else {
    for (const Segment& segment : batch.segments) {
      given.push_back(segment.out);
      if (buffers > 1) given.push_back(segment.out_ids);
    }
  }
  if (given.size() != batch.segments.size() * buffers) {
    *outputs = std::move(given);  // the host transport refuses it
    return Status::Ok();
  }
  Layout layout;
  std::vector<int> places;
  std::vector<int64_t> bytes;
  for (size_t s = 0; s < rows.size(); ++s) {
    int64_t total = 0;
    for (const int64_t count : rows[s]) total += count;
    bytes.push_back(total * batch.segments[s].row_count *
                    static_cast<int64_t>(SizeOf(batch.dtype)));
    places.push_back(layout.Add(given[s * buffers], bytes.back()));
  }
  HVD_RETURN_IF_ERROR(layout.Take(&pinned_, flight));
  flight->outputs_are_late = true;
  // Ids stay where they are: in host memory.
  *outputs = given;
  for (size_t s = 0; s < rows.size(); ++s) {
    void* const gpu = given[s * buffers];
    void* const host = layout.At(places[s]);
    (*outputs)[s * buffers] = host;
    if (gpu == nullptr) continue;
    flight->pieces[0].copies_out.push_back({host, gpu, bytes[s]});
  }
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
