// SPDX-License-Identifier: Apache-2.0
// ThreadWorld: a job whose ranks are threads of one process, with faults.
#ifndef HVD_TESTS_CORE_THREAD_BACKEND_H_
#define HVD_TESTS_CORE_THREAD_BACKEND_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/options.h"
#include "core/transport.h"
#include "transport/collectives/staged_transport.h"
#include "transport/shm/shm_host.h"
#include "transport/wire.h"
#include "transport/wire_backend.h"

namespace hvd {

// What goes wrong on one rank. Any thread may change it while the rank runs.
class Faults {
 public:
  // From now on the `n`-th move posted (1: the next one) fails, and with it
  // its wire for good.
  void FailMove(int64_t n) { moves_until_failure_ = n; }

  // The same for messages: from the `n`-th on none leaves the rank.
  void FailMessage(int64_t n) { messages_until_failure_ = n; }

  // The rank's thread sleeps that long over every move and message that
  // arrives: a slow rank.
  void Delay(std::chrono::microseconds delay) { delay_us_ = delay.count(); }

  // Stops the rank's thread at its next call to a wire or the channel, as a
  // SIGSTOP would, until Thaw. A frozen rank cannot be joined.
  void Freeze();
  void Thaw();
  // The same at the `n`-th move posted.
  void FreezeAtMove(int64_t n) { moves_until_freeze_ = n; }
  // Until the rank's thread stands still. False when it still does not after
  // 20 s.
  [[nodiscard]] bool WaitUntilFrozen();

  // The longest time for which the rank's thread did not come to its channel,
  // after it could and while it was not frozen. An idle thread comes by when
  // it has to ask its peers; see Heartbeats. A busy one comes every 50 ms.
  double longest_pause_s();

  // For the wrappers below.
  void BeginPasses();
  void NotePass();
  bool ConsumeFailure();
  bool ConsumeMessageFailure();
  bool ConsumeFreeze();
  void WaitDelay() const;
  void WaitWhileFrozen();

 private:
  using Clock = std::chrono::steady_clock;
  void NotePassLocked();

  std::atomic<int64_t> moves_until_failure_{0};  // 0: none will
  std::atomic<int64_t> moves_until_freeze_{0};
  std::atomic<int64_t> messages_until_failure_{0};
  std::atomic<int64_t> delay_us_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool frozen_ = false;
  bool stands_still_ = false;
  std::optional<Clock::time_point> last_pass_;
  Clock::duration longest_pause_{};
};

// The mailboxes of a job. Outlives nothing: backends share ownership of them.
// A rank may be opened once.
class ThreadWorld {
 public:
  // hosts[r] is the host of rank r. Empty: all on one. Chunks are as for
  // StagedTransport.
  // A rank's large batches are shared by copy_threads.
  explicit ThreadWorld(int size, std::vector<std::string> hosts = {},
                       int64_t chunk_bytes = kDefaultChunkBytes,
                       int64_t copy_threads = 1);

  // To be used by one thread, as any Backend.
  std::unique_ptr<WireBackend> Open(int rank);
  std::unique_ptr<WireBackend> Open(int rank, std::shared_ptr<Faults> faults);

  // With messages and data between ranks of a host through memory that is
  // shared as processes share it, but for being mapped once. It does for
  // `set_count` sets of all ranks beside the global one. `faults` are those of
  // what crosses hosts.
  std::unique_ptr<Backend> OpenShared(
      int rank, const Options& options, int set_count,
      std::shared_ptr<Faults> faults = std::make_shared<Faults>());

  // What OpenShared has made for the first host.
  std::shared_ptr<ShmHost> host() const;

  // The wire under a transport, for tests of wires and for wrappers.
  std::unique_ptr<Wire> NewWire(int rank, int slot,
                                const std::vector<int>& ranks);

  // The code of the first Backend::Abort. The process lives on.
  std::optional<int> abort_code() const;

  struct State;  // thread_backend.cc

 private:
  std::shared_ptr<State> state_;
};

// Passes moves on, but for its faults.
class FaultyWire : public Wire {
 public:
  FaultyWire(std::unique_ptr<Wire> wire, std::shared_ptr<Faults> faults);
  int rank() const override { return wire_->rank(); }
  int size() const override { return wire_->size(); }
  StagingPool& staging() override { return wire_->staging(); }
  StoreChoice* store_choice() override { return wire_->store_choice(); }
  const HostMap& hosts() const override { return wire_->hosts(); }
  bool zero_copy(int peer) const override { return wire_->zero_copy(peer); }
  Borrowed Arrived(MoveId id) const override { return wire_->Arrived(id); }
  void Poll() override { wire_->Poll(); }
  void Release(MoveId id) override { wire_->Release(id); }
  MoveId Send(int peer, uint32_t tag, const void* data, size_t bytes) override;
  MoveId Receive(int peer, uint32_t tag, void* data, size_t bytes) override;
  bool Test(MoveId id) override;
  Status status() const override;
  void Abandon(std::vector<StagingBuffer> memory) override;

 private:
  void Fault();

  std::unique_ptr<Wire> wire_;
  std::shared_ptr<Faults> faults_;
  Status status_;
};

// Runs body(rank) on one thread per rank and joins them.
void RunRanks(int size, const std::function<void(int rank)>& body);

}  // namespace hvd

#endif  // HVD_TESTS_CORE_THREAD_BACKEND_H_
