// SPDX-License-Identifier: Apache-2.0
// Mailboxes between threads, and what they make: a Channel, a Wire, a Backend.
#include "thread_world.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "meeting.h"
#include "transport/member_check.h"
#include "transport/shm/shm_backend.h"
#include "transport/shm/shm_segment.h"
#include "transport/topology.h"

namespace hvd {
namespace {

struct Message {
  int peer = 0;
  SharedBytes bytes;
};

// Process set, sender (rank of the job) and tag of a move.
using MoveKey = std::tuple<int, int, uint32_t>;

// What has arrived at one rank.
struct Mailbox {
  std::mutex mutex;
  std::deque<Message> messages;
  std::map<MoveKey, std::deque<std::string>> moves;
  std::shared_ptr<Doorbell> doorbell = std::make_shared<LocalDoorbell>();
};

}  // namespace

struct ThreadWorld::State {
  explicit State(int size) : boxes(size), exchanged(size), meeting(size) {}

  // Waits for all ranks, each of which calls it as often as the others.
  std::vector<std::string> Exchange(int rank, const std::string& mine) {
    exchanged[rank] = mine;
    meeting.Wait();
    std::vector<std::string> all = exchanged;
    meeting.Wait();  // nobody writes before all have read
    return all;
  }

  std::vector<Mailbox> boxes;  // by rank
  std::vector<Topology> topologies;
  int64_t chunk_bytes = 0;
  int64_t copy_threads = 1;
  std::atomic<bool> aborted{false};
  std::atomic<int> abort_code{0};

  std::vector<std::string> exchanged;  // by rank
  Meeting meeting;

  std::mutex mutex;  // of what follows
  std::map<int, std::shared_ptr<ShmHost>> hosts;
};

namespace {

using WorldState = std::shared_ptr<ThreadWorld::State>;

// Copies, so that a sender never waits.
class ThreadWire final : public Wire {
 public:
  // All sends are done at once, and have this id.
  static constexpr MoveId kSent = 0;

  ThreadWire(WorldState world, int slot, int rank, std::vector<int> ranks)
      : world_(std::move(world)),
        slot_(slot),
        rank_(rank),
        ranks_(std::move(ranks)),
        hosts_(EachAlone(static_cast<int>(ranks_.size()))) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  StagingPool& staging() override { return staging_; }
  const HostMap& hosts() const override { return hosts_; }
  bool zero_copy(int) const override { return false; }
  Status status() const override { return status_; }
  void Abandon(std::vector<StagingBuffer>) override { posted_.clear(); }

  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    Mailbox& box = world_->boxes[ranks_[peer]];
    {
      std::lock_guard<std::mutex> lock(box.mutex);
      box.moves[{slot_, ranks_[rank_], tag}].emplace_back(
          static_cast<const char*>(data), bytes);
    }
    box.doorbell->Ring();
    return kSent;
  }

  MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const MoveId id = next_id_++;
    const MoveKey key{slot_, ranks_[peer], tag};
    posted_[key].push_back({id, data, bytes});
    keys_[id] = key;
    return id;
  }

  bool Test(MoveId id) override {
    if (id == kSent) return true;
    auto found = keys_.find(id);
    if (found == keys_.end()) return false;
    Match(found->second);
    if (arrived_.erase(id) == 0) return false;
    keys_.erase(found);
    return true;
  }

 private:
  struct Posted {
    MoveId id = 0;
    void* data = nullptr;
    size_t bytes = 0;
  };

  void Match(const MoveKey& key) {
    std::deque<Posted>& posted = posted_[key];
    Mailbox& box = world_->boxes[ranks_[rank_]];
    std::lock_guard<std::mutex> lock(box.mutex);
    auto mail = box.moves.find(key);
    if (mail == box.moves.end()) return;
    while (!posted.empty() && !mail->second.empty()) {
      const Posted move = posted.front();
      const std::string bytes = std::move(mail->second.front());
      posted.pop_front();
      mail->second.pop_front();
      if (bytes.size() > move.bytes) {
        status_ = Internal("a message of " + std::to_string(bytes.size()) +
                           " bytes came for memory of " +
                           std::to_string(move.bytes) + ".");
        return;
      }
      std::memcpy(move.data, bytes.data(), bytes.size());
      arrived_.insert(move.id);
    }
    if (mail->second.empty()) box.moves.erase(mail);
    if (posted.empty()) posted_.erase(key);
  }

  const WorldState world_;
  const int slot_;
  const int rank_;  // within the set
  const std::vector<int> ranks_;
  const HostMap hosts_;
  HeapStagingPool staging_;
  MoveId next_id_ = 1;
  std::map<MoveKey, std::deque<Posted>> posted_;
  std::map<MoveId, MoveKey> keys_;
  std::set<MoveId> arrived_;
  Status status_;
};

class ThreadChannel final : public Channel {
 public:
  ThreadChannel(WorldState world, int rank, std::shared_ptr<Faults> faults)
      : world_(std::move(world)), rank_(rank), faults_(std::move(faults)) {}

  void Send(int peer, SharedBytes message) override {
    faults_->WaitWhileFrozen();
    faults_->NotePass();
    if (faults_->ConsumeMessageFailure()) {
      status_ = Internal("this message was made to fail.");
    }
    if (!status_.ok()) return;
    Mailbox& box = world_->boxes[peer];
    {
      std::lock_guard<std::mutex> lock(box.mutex);
      box.messages.push_back({rank_, std::move(message)});
    }
    box.doorbell->Ring();
  }

  bool Receive(int* peer, std::string* message) override {
    faults_->WaitWhileFrozen();
    faults_->NotePass();
    Mailbox& box = world_->boxes[rank_];
    {
      std::lock_guard<std::mutex> lock(box.mutex);
      if (box.messages.empty()) return false;
      *peer = box.messages.front().peer;
      *message = *box.messages.front().bytes;
      box.messages.pop_front();
    }
    faults_->WaitDelay();
    return true;
  }

  bool Flush() override { return false; }
  Status status() const override { return status_; }

 private:
  const WorldState world_;
  const int rank_;
  const std::shared_ptr<Faults> faults_;
  Status status_;
};

class ThreadBackend final : public WireBackend {
 public:
  ThreadBackend(WorldState world, int rank, std::shared_ptr<Faults> faults)
      : world_(std::move(world)),
        rank_(rank),
        faults_(std::move(faults)),
        spare_cores_(std::make_shared<SpareCores>(
            world_->copy_threads, static_cast<int>(world_->boxes.size()))),
        channel_(world_, rank, faults_) {}

  const Topology& topology() const override {
    return world_->topologies[rank_];
  }
  Channel& channel() override { return channel_; }

  Result<std::unique_ptr<Wire>> NewWire(
      int slot, const ProcessSet& process_set) override {
    HVD_RETURN_IF_ERROR(CheckMember(process_set, topology()));
    auto wire = std::make_unique<ThreadWire>(world_, slot, process_set.rank,
                                             process_set.ranks);
    return std::unique_ptr<Wire>(
        std::make_unique<FaultyWire>(std::move(wire), faults_));
  }

  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    Result<std::unique_ptr<Wire>> wire = NewWire(slot, process_set);
    if (!wire.ok()) return wire.status();
    return std::unique_ptr<Transport>(std::make_unique<StagedTransport>(
        std::move(wire.value()), process_set.ranks,
        HeapChunks(world_->chunk_bytes), spare_cores_));
  }

  const std::shared_ptr<SpareCores>& spare_cores() override {
    return spare_cores_;
  }

  std::shared_ptr<Doorbell> doorbell() override {
    return world_->boxes[rank_].doorbell;
  }
  bool arrivals_ring() const override { return true; }

  Result<std::vector<std::string>> Exchange(const std::string& mine) override {
    auto all = world_->Exchange(rank_, mine);
    faults_->BeginPasses();
    return all;
  }

  void Abort(int exit_code) override {
    if (!world_->aborted.exchange(true)) world_->abort_code = exit_code;
  }

 private:
  const WorldState world_;
  const int rank_;
  const std::shared_ptr<Faults> faults_;
  const std::shared_ptr<SpareCores> spare_cores_;
  ThreadChannel channel_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, std::vector<std::string> hosts,
                         int64_t chunk_bytes, int64_t copy_threads)
    : state_(std::make_shared<State>(size)) {
  if (hosts.empty()) hosts.assign(size, "localhost");
  for (int rank = 0; rank < size; ++rank) {
    state_->topologies.push_back(MakeTopology(rank, hosts));
    state_->topologies.back().hosts = hosts;
  }
  state_->chunk_bytes = chunk_bytes;
  state_->copy_threads = copy_threads;
}

std::unique_ptr<WireBackend> ThreadWorld::Open(int rank) {
  return Open(rank, std::make_shared<Faults>());
}

std::unique_ptr<WireBackend> ThreadWorld::Open(int rank,
                                               std::shared_ptr<Faults> faults) {
  return std::make_unique<ThreadBackend>(state_, rank, std::move(faults));
}

std::unique_ptr<Backend> ThreadWorld::OpenShared(
    int rank, const Options& options, int set_count,
    std::shared_ptr<Faults> faults) {
  const Topology& topology = state_->topologies[rank];
  const int size = topology.local_size;
  std::vector<int> all(topology.size);
  std::iota(all.begin(), all.end(), 0);
  const size_t arena_bytes =
      ShmArenaBytes(options, topology, ProcessSets(set_count, all));
  std::shared_ptr<ShmHost> host;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    std::shared_ptr<ShmHost>& shared = state_->hosts[topology.host_of[rank]];
    if (shared == nullptr) {
      auto segment = ShmSegment::Create(ShmHost::BytesFor(size, arena_bytes));
      if (!segment.ok()) {
        // The other ranks would wait for this one.
        std::printf("This host's memory is too small for the test: %s\n",
                    segment.status().message().c_str());
        std::fflush(stdout);
        std::_Exit(1);
      }
      segment.value()->Unlink();  // no rank needs to find it
      shared = std::make_shared<ShmHost>(segment.value(), size, arena_bytes);
    }
    host = shared;
  }
  return NewShmBackend(Open(rank, std::move(faults)), std::move(host), options);
}

std::shared_ptr<ShmHost> ThreadWorld::host() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->hosts.at(0);
}

std::unique_ptr<Wire> ThreadWorld::NewWire(int rank, int slot,
                                           const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return std::make_unique<ThreadWire>(
      state_, slot, static_cast<int>(found - ranks.begin()), ranks);
}

std::optional<int> ThreadWorld::abort_code() const {
  if (!state_->aborted) return std::nullopt;
  return state_->abort_code.load();
}

}  // namespace hvd
