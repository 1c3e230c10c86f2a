// SPDX-License-Identifier: Apache-2.0
// Opens wires over shared memory, and says how much of it they need.
#include "transport/shm/shm_backend.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/host_map.h"
#include "transport/collectives/staged_transport.h"
#include "transport/member_check.h"
#include "transport/shm/shm_channel.h"
#include "transport/shm/shm_doorbell.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_host.h"
#include "transport/shm/shm_wire.h"
#include "transport/shm/two_level_channel.h"
#include "transport/shm/two_level_wire.h"

namespace hvd {
namespace {

bool SpansHosts(const Topology& topology) {
  return topology.local_size < topology.size;
}

// The limits for a set that spans hosts, or does not. There must be memory for
// the most of them: autotune tries chunks of up to 1 MB.
ChunkLimits ChunksOf(const Options& options, bool spans_hosts) {
  constexpr int64_t kMostTunedBytes = 1 << 20;
  ChunkLimits chunks;
  chunks.bytes = spans_hosts ? options.chunk_bytes : options.shm_chunk_bytes;
  chunks.most_bytes =
      options.autotune ? std::max(chunks.bytes, kMostTunedBytes) : chunks.bytes;
  chunks.knob = spans_hosts ? "HVD_CHUNK_BYTES" : "HVD_SHM_CHUNK_BYTES";
  return chunks;
}

// The hosts of a set's ranks.
HostMap HostsOf(const Topology& topology, const std::vector<int>& ranks) {
  std::vector<int> keys;
  for (int rank : ranks) keys.push_back(topology.host_of[rank]);
  return MakeHostMap(keys);
}

// What a set's chunks need at least of the memory of each of its ranks; see the
// blocks that they reserve. In a set that spans hosts, chunks are those of the
// wire between them, and what comes from there is staged, too. A set that has
// one rank on each host shares no memory.
size_t ReserveBytes(const Options& options, const HostMap& hosts, int size) {
  constexpr size_t kPerRank = 1024, kSmallChunks = 16 << 10;
  const bool spans_hosts = hosts.host_count() > 1;
  if (spans_hosts && !hosts.has_two_levels()) return 0;
  const auto ranks = static_cast<size_t>(size);
  const size_t blocks = kPerRank * ranks + kSmallChunks;
  const auto chunk_bytes =
      static_cast<size_t>(ChunksOf(options, spans_hosts).most_bytes);
  if (!spans_hosts) return chunk_bytes + blocks;
  return 2 * std::max(chunk_bytes,
                      static_cast<size_t>(kSmallestGatherChunkBytes) * ranks) +
         blocks;
}

class ShmBackend final : public Backend {
 public:
  ShmBackend(std::unique_ptr<WireBackend> base, std::shared_ptr<ShmHost> host,
             const Options& options)
      : base_(std::move(base)),
        options_(options),
        endpoint_(std::make_shared<ShmEndpoint>(
            host, base_->topology().local_rank, options.shm_non_temporal)),
        within_(host, endpoint_, base_->topology().local_rank),
        channel_(base_->topology(), &within_, &base_->channel()),
        doorbell_(std::make_shared<ShmDoorbell>(
            host->doorbell(base_->topology().local_rank), host->segment())) {}

  const Topology& topology() const override { return base_->topology(); }
  Channel& channel() override {
    if (SpansHosts(topology())) return channel_;
    return within_;
  }
  std::shared_ptr<Doorbell> doorbell() override { return doorbell_; }
  // A rank of another host cannot ring it.
  bool arrivals_ring() const override { return !SpansHosts(topology()); }
  Result<std::vector<std::string>> Exchange(const std::string& mine) override {
    return base_->Exchange(mine);
  }
  void Abort(int exit_code) override { base_->Abort(exit_code); }

  // The same way on every member, for all know the hosts of all.
  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    HVD_RETURN_IF_ERROR(CheckMember(process_set, topology()));
    HostMap hosts = HostsOf(topology(), process_set.ranks);
    if (hosts.host_count() == 1) return NewWithinHost(slot, process_set, hosts);
    if (hosts.has_two_levels()) {
      return NewOverHosts(slot, process_set, std::move(hosts));
    }
    return base_->NewTransport(slot, process_set);
  }
  void ForgetNewTransport() override { endpoint_->arena().StopWaiting(); }

 private:
  Result<std::unique_ptr<Transport>> NewWithinHost(
      int slot, const ProcessSet& process_set, const HostMap& hosts) {
    const std::vector<int>& ranks = process_set.ranks;
    Result<StagingBuffer> reserve = Reserve(ranks, hosts);
    if (!reserve.ok()) return reserve.status();
    if (reserve.value().data == nullptr) return std::unique_ptr<Transport>();
    auto wire =
        std::make_unique<ShmWire>(endpoint_, slot, LocalRanks(ranks),
                                  process_set.rank, std::move(reserve.value()));
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::move(wire), ranks, ChunksOf(options_, false),
        base_->spare_cores()));
  }

  Result<std::unique_ptr<Transport>> NewOverHosts(int slot,
                                                  const ProcessSet& process_set,
                                                  HostMap hosts) {
    const std::vector<int>& ranks = process_set.ranks;
    Result<std::unique_ptr<Wire>> across = base_->NewWire(slot, process_set);
    if (!across.ok()) return across.status();
    Result<StagingBuffer> reserve = Reserve(ranks, hosts);
    if (!reserve.ok()) return reserve.status();
    if (reserve.value().data == nullptr) return std::unique_ptr<Transport>();
    auto wire = std::make_unique<TwoLevelWire>(
        endpoint_, slot, std::move(hosts), LocalRanks(ranks),
        std::move(across.value()), std::move(reserve.value()));
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::move(wire), ranks, ChunksOf(options_, true),
        base_->spare_cores()));
  }

  // The place on this host of each of the job's `ranks`; -1: on another host.
  std::vector<int> LocalRanks(const std::vector<int>& ranks) const {
    const std::vector<int>& here = topology().local_ranks;
    std::vector<int> local_ranks;
    for (int rank : ranks) {
      const auto found = std::find(here.begin(), here.end(), rank);
      local_ranks.push_back(
          found == here.end() ? -1 : static_cast<int>(found - here.begin()));
    }
    return local_ranks;
  }

  // Without data: it is in use.
  Result<StagingBuffer> Reserve(const std::vector<int>& ranks,
                                const HostMap& hosts) {
    const size_t bytes =
        ReserveBytes(options_, hosts, static_cast<int>(ranks.size()));
    const std::optional<StagingBuffer> reserve =
        endpoint_->arena().Reserve(bytes);
    if (!reserve.has_value()) {
      return ResourceExhausted(
          "the shared memory has no room for another process set, which takes "
          "up to " +
          std::to_string(bytes) +
          " bytes; give every rank more with HVD_SHM_BYTES.");
    }
    return *reserve;
  }

  const std::unique_ptr<WireBackend> base_;
  const Options options_;
  const std::shared_ptr<ShmEndpoint> endpoint_;
  ShmChannel within_;
  TwoLevelChannel channel_;
  const std::shared_ptr<ShmDoorbell> doorbell_;
};

// False of a set that Runtime::Start is going to refuse.
bool AreRanks(const std::vector<int>& ranks, int size) {
  return !ranks.empty() &&
         std::all_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return rank >= 0 && rank < size; });
}

}  // namespace

size_t ShmArenaBytes(const Options& options, const Topology& topology,
                     const ProcessSets& process_sets) {
  constexpr size_t kPageBytes = 4096;
  std::vector<size_t> reserves(topology.size, 0);  // of each rank
  const auto add = [&](const std::vector<int>& ranks) {
    const HostMap hosts = HostsOf(topology, ranks);
    const size_t bytes =
        ReserveBytes(options, hosts, static_cast<int>(ranks.size()));
    for (int rank : ranks) reserves[rank] += bytes;
  };
  std::vector<int> all(topology.size);
  std::iota(all.begin(), all.end(), 0);
  add(all);
  for (const std::vector<int>& ranks : process_sets) {
    if (AreRanks(ranks, topology.size)) add(ranks);
  }
  size_t reserve = 0;
  for (int rank : topology.local_ranks) {
    reserve = std::max(reserve, reserves[rank]);
  }
  const size_t bytes = static_cast<size_t>(options.shm_bytes) + reserve;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::unique_ptr<Backend> NewShmBackend(std::unique_ptr<WireBackend> base,
                                       std::shared_ptr<ShmHost> host,
                                       const Options& options) {
  return std::make_unique<ShmBackend>(std::move(base), std::move(host),
                                      options);
}

}  // namespace hvd
