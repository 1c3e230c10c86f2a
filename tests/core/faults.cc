// SPDX-License-Identifier: Apache-2.0
// What a thread meets at its faults: counters, a delay, and a stop.
#include "faults.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace hvd {
namespace {

// True when it comes to 0, where it stays.
bool CountDown(std::atomic<int64_t>* counter) {
  int64_t left = counter->load();
  while (left > 0) {
    if (counter->compare_exchange_weak(left, left - 1)) return left == 1;
  }
  return false;
}

}  // namespace

void Faults::Freeze() {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen_ = true;
}

void Faults::Thaw() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    frozen_ = false;
  }
  changed_.notify_all();
}

void Faults::WaitWhileFrozen() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!frozen_) return;
  NotePassLocked();
  stands_still_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !frozen_; });
  stands_still_ = false;
  if (last_pass_.has_value()) last_pass_ = Clock::now();
}

void Faults::BeginPasses() {
  std::lock_guard<std::mutex> lock(mutex_);
  last_pass_ = Clock::now();
}

void Faults::NotePass() {
  std::lock_guard<std::mutex> lock(mutex_);
  NotePassLocked();
}

void Faults::NotePassLocked() {
  if (!last_pass_.has_value()) return;
  const Clock::time_point now = Clock::now();
  longest_pause_ = std::max(longest_pause_, now - *last_pass_);
  last_pass_ = now;
}

double Faults::longest_pause_s() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::duration<double>(longest_pause_).count();
}

bool Faults::WaitUntilFrozen() {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(20),
                           [this] { return stands_still_; });
}

void Faults::WaitDelay() const {
  const std::chrono::microseconds delay(delay_us_.load());
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

bool Faults::ConsumeFailure() { return CountDown(&moves_until_failure_); }

bool Faults::ConsumeFreeze() { return CountDown(&moves_until_freeze_); }

bool Faults::ConsumeMessageFailure() {
  return CountDown(&messages_until_failure_);
}

FaultyWire::FaultyWire(std::unique_ptr<Wire> wire,
                       std::shared_ptr<Faults> faults)
    : wire_(std::move(wire)), faults_(std::move(faults)) {}

void FaultyWire::Fault() {
  if (faults_->ConsumeFreeze()) faults_->Freeze();
  faults_->WaitWhileFrozen();
  if (status_.ok() && faults_->ConsumeFailure()) {
    status_ = Internal("this move was made to fail.");
  }
}

MoveId FaultyWire::Send(int peer, uint32_t tag, const void* data,
                        size_t bytes) {
  Fault();
  if (!status_.ok()) return kNever;
  return wire_->Send(peer, tag, data, bytes);
}

MoveId FaultyWire::Receive(int peer, uint32_t tag, void* data, size_t bytes) {
  Fault();
  if (!status_.ok()) return kNever;
  const MoveId id = wire_->Receive(peer, tag, data, bytes);
  receives_.insert(id);
  return id;
}

bool FaultyWire::Test(MoveId id) {
  faults_->WaitWhileFrozen();
  if (!status_.ok()) return false;
  if (!wire_->Test(id)) return false;
  if (receives_.erase(id) > 0) faults_->WaitDelay();
  return true;
}

Status FaultyWire::status() const {
  return status_.ok() ? wire_->status() : status_;
}

void FaultyWire::Abandon(std::vector<StagingBuffer> memory) {
  wire_->Abandon(std::move(memory));
}

}  // namespace hvd
