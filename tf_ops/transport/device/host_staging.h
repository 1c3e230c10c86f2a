// SPDX-License-Identifier: Apache-2.0
// HostStaging: batches in a GPU's memory, carried by a host transport.
#ifndef HVD_TRANSPORT_DEVICE_HOST_STAGING_H_
#define HVD_TRANSPORT_DEVICE_HOST_STAGING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/rows.h"
#include "core/transport.h"
#include "transport/device/device.h"
#include "transport/device/pinned_memory.h"
#include "transport/device/staging_pieces.h"

namespace hvd {

// Copies inputs to pinned memory, has the host transport run the batch there,
// and copies the outputs back. It knows all verbs that the host transport
// knows. Nothing waits for the GPU.
//
// The host batch is started at once, so it has the batch's place in the order
// of the host transport, which carries batches of host memory as well. It reads
// its inputs when the GPU has copied them. A large batch is several host
// batches, so that copies and the wire overlap.
//
// Other than the contract says, a batch that is cancelled while the GPU copies
// is done when that copy is: Progress calls `done`. Progress of the host
// transport is the owner's to call.
class HostStaging final : public Transport {
 public:
  // `host` outlives this object. `wake` is called by any thread when the GPU
  // has copied something, so that Progress is called.
  HostStaging(Transport* host, std::shared_ptr<Device> device,
              std::function<void()> wake,
              int64_t least_piece_bytes = kLeastPieceBytes);
  ~HostStaging() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool within_host() const override { return host_->within_host(); }
  BatchId Start(Batch batch, BatchDone done) override;
  bool Progress() override;

  PinnedMemory& pinned() { return pinned_; }

  void Cancel(BatchId id, const Status& why) override;
  // Those that the host transport is done with. It counts the others.
  int in_flight() const override;
  int count_of(BatchId id) const override;
  std::vector<BatchId> with_gpu() const override;
  bool waits_for_own_gpu(BatchId) const override { return true; }

 private:
  // Rows of equal id that the host adds up. See Segment::groups.
  struct GroupSum {
    std::shared_ptr<const RowGroups> groups;
    int64_t row_count;
    const void* values;
    void* sums;
  };
  // A part of a batch, which is a batch of the host transport.
  struct Piece {
    std::vector<SegmentPart> parts;
    std::vector<GroupSum> sums;  // once its inputs are copied
    BatchId host_id = 0;
    std::unique_ptr<DeviceEvent> copied_in;  // null: it has been reached
    std::vector<CopySegment> copies_out;
    std::unique_ptr<DeviceEvent> copied_out;
    bool host_is_done = false;
  };
  // A batch that is not done. The host transport's callbacks share it.
  struct Flight {
    Batch batch;  // as it was given
    BatchDone done;
    std::vector<Piece> pieces;
    // By segment. Without groups: there is nothing to add up.
    std::vector<GroupSum> sums;
    // Segment::ready of one of the tensors. Null: this rank has no tensors,
    // because it has joined.
    std::shared_ptr<const void> ready;
    // What the GPU reads and writes, one block or two.
    std::vector<std::shared_ptr<std::byte>> pinned;
    // Outputs that were allocated late: the framework's stream may still have
    // to do with the memory that they got.
    bool outputs_are_late = false;
    // Not Ok: the batch has failed, or was cancelled.
    Status status;
  };
  using FlightPtr = std::shared_ptr<Flight>;
  struct Call {
    BatchDone done;
    Status status;
  };
  class Layout;

  // Finds the flight's GPU, and opens its streams before the first batch.
  Status OpenStreams(Flight* flight);
  // Gives the host batch its places in pinned memory, and lists the flight's
  // sums.
  Status PlaceTensors(Flight* flight, Batch* host_batch);
  void StartPiece(const FlightPtr& flight, const Batch& host_batch,
                  size_t number);
  // Elements that `in` has, where rows of equal id are in it.
  static int64_t ListedCount(const Segment& segment);
  // Queues the copies of a piece's inputs, and lists those of its outputs.
  Status CopyIn(Flight* flight, const Batch& host_batch, Piece* piece);
  // Batch::allocate of the host batch.
  Status AllocateOutputs(Flight* flight, const RankCounts& rows,
                         std::vector<void*>* outputs);
  // True if anything moved.
  bool Advance(Flight* flight, Piece* piece);
  // Whether the event is reached, which then is deleted. What fails is noted.
  bool IsReached(std::unique_ptr<DeviceEvent>* event, Flight* flight);
  void CopyOut(Flight* flight, Piece* piece);
  void CancelPieces(const Flight& flight, const Status& why);
  static bool IsDone(const Flight& flight);

  Transport* const host_;
  const std::function<void()> wake_;
  const int64_t least_piece_bytes_;
  PinnedMemory pinned_;
  const std::shared_ptr<Device> device_;
  BatchId next_id_ = 1;
  std::map<BatchId, FlightPtr> flights_;
  // A GPU copies both ways at the same time. They go before the flights'
  // memory does. Null until the first batch.
  std::unique_ptr<DeviceStream> in_, out_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_HOST_STAGING_H_
