// SPDX-License-Identifier: Apache-2.0
// Faults: what goes wrong on a rank of a test, and a wire that has them.
#ifndef HVD_TESTS_CORE_FAULTS_H_
#define HVD_TESTS_CORE_FAULTS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "core/status.h"
#include "transport/wire.h"

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

  // For the wire below, and for the channel of a ThreadWorld.
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

// Passes moves on to any other wire, but for its faults.
class FaultyWire : public Wire {
 public:
  // The id of a move that was made to fail. No wire counts that far.
  static constexpr MoveId kNever = std::numeric_limits<MoveId>::max();

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
  std::set<MoveId> receives_;  // those posted and not done
  Status status_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_FAULTS_H_
