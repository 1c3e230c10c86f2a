// SPDX-License-Identifier: Apache-2.0
// Sets the shared memory up among the ranks, and opens wires over it.
#include "transport/shm_backend.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"
#include "transport/shm_channel.h"
#include "transport/shm_doorbell.h"
#include "transport/shm_host.h"
#include "transport/shm_port.h"
#include "transport/shm_segment.h"
#include "transport/shm_wire.h"
#include "transport/staged_transport.h"

namespace hvd {
namespace {

using Strings = std::vector<std::string>;

// What the pieces of one set need at least; see the blocks that they reserve.
size_t ReserveBytes(const Options& options, int ranks) {
  constexpr size_t kPerRank = 1024, kSmallPieces = 16 << 10;
  return static_cast<size_t>(options.shm_piece_bytes) +
         kPerRank * static_cast<size_t>(ranks) + kSmallPieces;
}

class ShmBackend final : public Backend {
 public:
  ShmBackend(std::unique_ptr<Backend> base, std::shared_ptr<ShmHost> host,
             const Options& options)
      : base_(std::move(base)),
        piece_bytes_(options.shm_piece_bytes),
        reserve_bytes_(ReserveBytes(options, host->ranks())),
        port_(std::make_shared<ShmPort>(host, base_->topology().local_rank)),
        channel_(host, port_, base_->topology().local_rank),
        doorbell_(std::make_shared<ShmDoorbell>(
            host->doorbell(base_->topology().local_rank), host->segment())) {}

  const Topology& topology() const override { return base_->topology(); }
  Channel& channel() override { return channel_; }
  std::shared_ptr<Doorbell> doorbell() override { return doorbell_; }
  bool arrivals_ring() const override { return true; }
  Result<Strings> Exchange(const std::string& mine) override {
    return base_->Exchange(mine);
  }
  void Abort(int exit_code) override { base_->Abort(exit_code); }

  // Ranks of the job are those of the host.
  Result<std::unique_ptr<Transport>> NewTransport(
      int set_id, const std::vector<int>& ranks) override {
    const int rank = topology().rank;
    const auto place = std::find(ranks.begin(), ranks.end(), rank);
    if (place == ranks.end()) {
      return InvalidArgument("rank " + std::to_string(rank) +
                             " is not in process set " +
                             std::to_string(set_id) + ".");
    }
    StagingBuffer reserve =
        port_->arena().Take(reserve_bytes_, Urgency::kOldest);
    if (reserve.data == nullptr) {
      return ResourceExhausted(
          "the shared memory has no room for process set " +
          std::to_string(set_id) + "; give it more with HVD_SHM_BYTES.");
    }
    auto wire = std::make_unique<ShmWire>(
        port_, set_id, ranks, static_cast<int>(place - ranks.begin()),
        std::move(reserve));
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::move(wire), ranks, piece_bytes_));
  }

 private:
  const std::unique_ptr<Backend> base_;
  const int64_t piece_bytes_;
  const size_t reserve_bytes_;
  const std::shared_ptr<ShmPort> port_;
  ShmChannel channel_;
  const std::shared_ptr<ShmDoorbell> doorbell_;
};

// Of the first rank, or of all; "" means well.
std::string FirstError(const Strings& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) {
      return "rank " + std::to_string(rank) + ": " + errors[rank];
    }
  }
  return "";
}

// All ranks attach to what the first of them makes. Ok with null, and the
// reason in `refusal`, when one of them cannot.
Result<std::shared_ptr<ShmSegment>> Share(Backend* base, size_t bytes,
                                          std::string* refusal) {
  const bool creates = base->topology().rank == 0;
  std::shared_ptr<ShmSegment> segment;
  std::string error;
  const auto take = [&](Result<std::shared_ptr<ShmSegment>> result) {
    if (result.ok()) segment = result.value();
    error = result.status().message();
  };
  if (creates) take(ShmSegment::Create(bytes));
  Result<Strings> names = base->Exchange(segment ? segment->name() : "");
  if (!names.ok()) return names.status();
  const std::string& name = names.value()[0];
  if (!creates && !name.empty()) take(ShmSegment::Attach(name, bytes));
  Result<Strings> errors = base->Exchange(error);
  if (!errors.ok()) return errors.status();
  if (segment) segment->Unlink();
  *refusal = FirstError(errors.value());
  if (!refusal->empty()) segment = nullptr;
  return segment;
}

Status CheckAlike(const Strings& values) {
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] == values[0]) continue;
    return InvalidArgument("HVD_SHM, HVD_SHM_BYTES, HVD_SHM_PIECE_BYTES are " +
                           values[0] + " on rank 0 and " + values[rank] +
                           " on rank " + std::to_string(rank) +
                           "; give every rank the same.");
  }
  return Status::Ok();
}

}  // namespace

size_t ShmArenaBytes(const Options& options, int ranks, int set_count) {
  constexpr size_t kPageBytes = 4096;
  const size_t bytes =
      static_cast<size_t>(options.shm_bytes) +
      static_cast<size_t>(set_count + 1) * ReserveBytes(options, ranks);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::unique_ptr<Backend> NewShmBackend(std::unique_ptr<Backend> base,
                                       std::shared_ptr<ShmHost> host,
                                       const Options& options) {
  return std::make_unique<ShmBackend>(std::move(base), std::move(host),
                                      options);
}

Result<std::unique_ptr<Backend>> AddSharedMemory(std::unique_ptr<Backend> base,
                                                 const Options& options,
                                                 int set_count) {
  Result<Strings> knobs = base->Exchange(
      std::to_string(options.shm) + ", " + std::to_string(options.shm_bytes) +
      ", " + std::to_string(options.shm_piece_bytes));
  if (!knobs.ok()) return knobs.status();
  HVD_RETURN_IF_ERROR(CheckAlike(knobs.value()));
  if (options.shm == 0) return base;
  const int ranks = base->topology().size;
  const size_t arena_bytes = ShmArenaBytes(options, ranks, set_count);
  std::string refusal;
  Result<std::shared_ptr<ShmSegment>> segment =
      Share(base.get(), ShmHost::BytesFor(ranks, arena_bytes), &refusal);
  if (!segment.ok()) return segment.status();
  if (segment.value() == nullptr) {
    if (base->topology().rank == 0) {
      Log(LogLevel::kWarning,
          "No shared memory (" + refusal +
              "): data goes over MPI, which is slower. Give the container "
              "more, as with docker's --shm-size, or set HVD_SHM=0.");
    }
    return base;
  }
  return NewShmBackend(
      std::move(base),
      std::make_shared<ShmHost>(segment.value(), ranks, arena_bytes), options);
}

}  // namespace hvd
