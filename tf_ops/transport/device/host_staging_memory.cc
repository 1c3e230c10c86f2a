// SPDX-License-Identifier: Apache-2.0
// The part of HostStaging for where tensors are in pinned memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/device/host_staging.h"
#include "transport/device/outputs.h"

namespace hvd {
namespace {

constexpr int64_t kAlignment = 64;

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

int64_t HostStaging::ListedCount(const Segment& segment) {
  return static_cast<int64_t>(segment.groups->places.size()) *
         segment.row_count;
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

}  // namespace hvd
