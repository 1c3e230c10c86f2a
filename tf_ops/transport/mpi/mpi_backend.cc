// SPDX-License-Identifier: Apache-2.0
// One backend: a session, its channel, and a wire for every process set.
#include "transport/mpi/mpi_backend.h"

#include <mpi.h>

#include <string>
#include <utility>

#include "core/build_stamp.h"
#include "transport/collectives/staged_transport.h"
#include "transport/member_check.h"
#include "transport/mpi/mpi_process.h"
#include "transport/mpi/mpi_session.h"
#include "transport/mpi/mpi_wire.h"

namespace hvd {
namespace {

// Tags of a wire are below 2^14. Each set has a range of its own, one after
// another.
constexpr int kWireTagBits = 14;

class MpiBackend final : public WireBackend {
 public:
  MpiBackend(std::shared_ptr<MpiSession> session, Topology topology,
             const Options& options, int sharing_ranks)
      : session_(std::move(session)),
        topology_(std::move(topology)),
        chunk_bytes_(options.chunk_bytes),
        spare_cores_(
            std::make_shared<SpareCores>(options.copy_threads, sharing_ranks)),
        channel_(session_) {}

  const Topology& topology() const override { return topology_; }
  Channel& channel() override { return channel_; }

  Result<std::unique_ptr<Wire>> NewWire(
      int slot, const ProcessSet& process_set) override {
    HVD_RETURN_IF_ERROR(CheckMember(process_set, topology_));
    if (((slot + 1) << kWireTagBits) - 1 > session_->tag_limit()) {
      return InvalidArgument("this MPI has tags up to " +
                             std::to_string(session_->tag_limit()) +
                             " only, too few for process set " +
                             std::to_string(process_set.id) + ".");
    }
    return std::unique_ptr<Wire>(std::make_unique<MpiWire>(
        session_, process_set.ranks, process_set.rank, slot << kWireTagBits));
  }

  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    Result<std::unique_ptr<Wire>> wire = NewWire(slot, process_set);
    if (!wire.ok()) return wire.status();
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::move(wire.value()), process_set.ranks, HeapChunks(chunk_bytes_),
        spare_cores_));
  }

  const std::shared_ptr<SpareCores>& spare_cores() override {
    return spare_cores_;
  }

  std::shared_ptr<Doorbell> doorbell() override { return doorbell_; }
  // MPI can only be polled.
  bool arrivals_ring() const override { return false; }

  Result<std::vector<std::string>> Exchange(const std::string& mine) override {
    std::vector<std::string> all;
    HVD_RETURN_IF_ERROR(session_->GatherStrings(mine, &all));
    return all;
  }

  void Abort(int exit_code) override { AbortMpi(exit_code); }

 private:
  const std::shared_ptr<MpiSession> session_;
  const Topology topology_;
  const int64_t chunk_bytes_;
  const std::shared_ptr<SpareCores> spare_cores_;
  MpiChannel channel_;
  const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<LocalDoorbell>();
};

std::string ToText(const std::vector<std::vector<int>>& sets) {
  std::string text = "[";
  for (const std::vector<int>& ranks : sets) {
    text += text.size() > 1 ? ", [" : "[";
    for (size_t i = 0; i < ranks.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    text += "]";
  }
  return text + "]";
}

// How many ranks of this host share this rank's cores. A launcher may have
// given each some of its own.
Result<int> CountSharingRanks(MpiSession* session, const Topology& topology) {
  const std::string mine = UsableCores();
  std::vector<std::string> all, of_host;
  HVD_RETURN_IF_ERROR(session->GatherStrings(mine, &all));
  for (const int rank : topology.local_ranks) of_host.push_back(all[rank]);
  return SharingRanks(of_host, mine);
}

}  // namespace

Result<std::unique_ptr<WireBackend>> OpenMpiBackend(const JobArgs& args,
                                                    const Options& options) {
  Result<std::shared_ptr<MpiSession>> session = MpiSession::Open(args);
  if (!session.ok()) return session.status();
  // This comes first, because the messages that follow depend on the build.
  HVD_RETURN_IF_ERROR(session.value()->CheckAlike("hvd_tf", BuildStamp()));
  // The messages depend on it.
  HVD_RETURN_IF_ERROR(session.value()->CheckAlike(
      "HVD_CHUNK_BYTES", std::to_string(options.chunk_bytes)));
  // Memory is reserved for all values that autotune may choose.
  HVD_RETURN_IF_ERROR(session.value()->CheckAlike(
      "HVD_AUTOTUNE", std::to_string(options.autotune)));
  HVD_RETURN_IF_ERROR(session.value()->CheckAlike("init's process_sets",
                                                  ToText(args.process_sets)));
  HVD_RETURN_IF_ERROR(session.value()->CheckAlike(
      "HVD_DYNAMIC_PROCESS_SETS (1 with init(process_sets=\"dynamic\"))",
      std::to_string(options.dynamic_process_sets)));
  Result<Topology> topology = session.value()->MakeTopology(options.host_id);
  if (!topology.ok()) return topology.status();
  const Result<int> sharing_ranks =
      CountSharingRanks(session.value().get(), topology.value());
  if (!sharing_ranks.ok()) return sharing_ranks.status();
  return std::unique_ptr<WireBackend>(
      std::make_unique<MpiBackend>(session.value(), std::move(topology.value()),
                                   options, sharing_ranks.value()));
}

}  // namespace hvd
