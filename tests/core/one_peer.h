// SPDX-License-Identifier: Apache-2.0
// A BackgroundLoop's other side without a wire: rank 1 of two, and its
// transport.
#ifndef HVD_TESTS_CORE_ONE_PEER_H_
#define HVD_TESTS_CORE_ONE_PEER_H_

#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/command_queue.h"
#include "core/control/message.h"
#include "core/options.h"
#include "core/transport.h"
#include "harness.h"

namespace hvd {

// What the loop did on the wire, in order.
using Deeds = std::vector<std::string>;

enum class PeerWire {
  kKeeps,        // is never done by itself
  kHasNoMemory,  // starts nothing
  kBreaks,       // at the first look
  kIsSilent,     // nothing moves
};

// After many looks the loop is ended.
class KeepingTransport : public Transport {
 public:
  KeepingTransport(Deeds* deeds, CommandQueue* queue, PeerWire wire)
      : deeds_(deeds), queue_(queue), wire_(wire) {
    chunks_.bytes = chunks_.most_bytes = 1 << 20;
  }
  int rank() const override { return 1; }
  int size() const override { return 2; }
  BatchId Start(Batch batch, BatchDone done) override {
    deeds_->push_back("start " + *batch.segments[0].name);
    if (wire_ == PeerWire::kHasNoMemory) throw std::bad_alloc();
    dones_.push_back(std::move(done));
    return dones_.size();
  }
  bool Progress() override {
    if (wire_ == PeerWire::kIsSilent) return false;
    if (wire_ == PeerWire::kBreaks && !dones_.empty() && dones_[0] != nullptr) {
      std::exchange(dones_[0], nullptr)(Internal("the wire broke"));
    }
    if (++looks_ == 1000)
      queue_->PushAnyway(EndCommand{false, "the test hangs"});
    return looks_ < 1000;
  }
  void Cancel(BatchId id, const Status& why) override {
    deeds_->push_back("cancel " + std::to_string(id));
    std::exchange(dones_[id - 1], nullptr)(why);
  }
  ChunkLimits chunk_limits() const override { return chunks_; }
  void SetChunkBytes(int64_t bytes) override {
    deeds_->push_back("chunks of " + std::to_string(bytes));
  }
  int in_flight() const override {
    int count = 0;
    for (const BatchDone& done : dones_) count += done != nullptr ? 1 : 0;
    return count;
  }

 private:
  Deeds* const deeds_;
  CommandQueue* const queue_;
  const PeerWire wire_;
  ChunkLimits chunks_;
  std::vector<BatchDone> dones_;
  int looks_ = 0;
};

// Rank 1 of two. All messages of `inbox` are there at the first look.
class OnePeer : public Backend, public Channel {
 public:
  explicit OnePeer(
      std::shared_ptr<Doorbell> bell = std::make_shared<LocalDoorbell>())
      : bell_(std::move(bell)) {
    topology_.rank = 1;
    topology_.size = 2;
    topology_.host_of = {0, 1};
    topology_.hosts = {"near", "far"};
  }
  const Topology& topology() const override { return topology_; }
  Channel& channel() override { return *this; }
  Result<std::vector<std::string>> Exchange(const std::string&) override {
    return Internal("not here");
  }
  Result<std::unique_ptr<Transport>> NewTransport(int slot,
                                                  const ProcessSet&) override {
    if (slot == full_slot) return std::unique_ptr<Transport>();
    return std::unique_ptr<Transport>(
        std::make_unique<KeepingTransport>(&deeds, &queue, wire));
  }
  void ForgetNewTransport() override { deeds.push_back("forget"); }
  std::shared_ptr<Doorbell> doorbell() override { return bell_; }
  bool arrivals_ring() const override { return rings; }
  void Abort(int) override {}

  void Send(int, SharedBytes message) override {
    auto envelope = Decode(*message);
    ASSERT_TRUE(envelope.ok());
    const auto* const told = std::get_if<PeerEnds>(&envelope.value().message);
    if (told != nullptr) end = told->ends.at(0);
  }
  bool Receive(int* peer, std::string* message) override {
    if (inbox.empty()) return false;
    *peer = sender;
    *message = Encode(inbox.front());
    inbox.pop_front();
    return true;
  }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

 private:
  Topology topology_;
  const std::shared_ptr<Doorbell> bell_;

 public:
  bool rings = false;
  Options options = Options::Defaults();
  std::deque<Envelope> inbox;
  int sender = 0;  // of what is in it
  Deeds deeds;
  PeerEndMessage end;  // what it told of its own
  PeerWire wire = PeerWire::kKeeps;
  int full_slot = -1;  // there is no memory for it yet
  // Such as "x", whose call is cancelled before the first look.
  std::string cancelled;
  CommandQueue queue{bell_};
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_ONE_PEER_H_
