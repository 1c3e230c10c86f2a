// SPDX-License-Identifier: Apache-2.0
// A step of random collectives, run and aborted as TensorFlow does that.
#ifndef HVD_TESTS_CORE_STRESS_STEP_H_
#define HVD_TESTS_CORE_STRESS_STEP_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/runtime.h"
#include "harness.h"
#include "random_calls.h"

namespace hvd {

// For what may take milliseconds.
inline constexpr std::chrono::seconds kStepLimit(30);

// A step as TensorFlow runs one: it fails as a whole, once one of its
// operations does. Shared by the entries that it has under way.
class Step : public std::enable_shared_from_this<Step> {
 public:
  Step(Runtime* runtime, int64_t number) : runtime_(runtime), number_(number) {}

  // From any thread. `spoil` may change the request.
  void Start(const RandomCall& call, uint64_t salt,
             const std::function<void(Request*)>& spoil = nullptr) {
    const ProcessSet& set = *runtime_->process_set(call.set);
    const Key key{call.name, 0};
    auto running = std::make_shared<Running>(call, set, salt);
    // The entry lives in what has its buffers.
    Entry& entry = running->entry;
    running->buffers.Describe(&entry);
    entry.request.key = key;
    entry.request.step = number_;
    if (spoil) spoil(&entry.request);
    entry.ticket = running->ticket = runtime_->NewTicket();
    entry.done = [this, raw = running.get()](const Status& status) {
      Finish(raw, status);
    };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!why_.ok()) {
        // An operation that starts late says so. Most never start.
        if (entry.ticket % 2 == 0) {
          runtime_->AbortStep(*runtime_->process_set(call.set), key, number_,
                              why_);
        }
        return;
      }
      running_.push_back(running);
      ++open_;
    }
    // What it is done with must live as long as its buffers.
    auto owners =
        std::make_shared<std::pair<std::shared_ptr<void>, RunningPtr>>(
            shared_from_this(), running);
    runtime_->Enqueue(call.set, EntryPtr(std::move(owners), &entry));
    std::unique_lock<std::mutex> lock(mutex_);
    running->enqueued = true;
    const Status why = why_;
    lock.unlock();
    if (!why.ok()) runtime_->Cancel(call.set, running->ticket, why);
  }

  // The same, and waits for its end.
  void Run(const RandomCall& call, uint64_t salt) {
    Start(call, salt);
    std::unique_lock<std::mutex> lock(mutex_);
    all_told_.wait_for(lock, kStepLimit, [this] { return open_ == 0; });
  }

  void Abort(const Status& why) {
    std::vector<RunningPtr> to_cancel;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!why_.ok()) return;
      why_ = why;
      for (const RunningPtr& running : running_) {
        if (running->enqueued && !running->result) to_cancel.push_back(running);
      }
    }
    for (const RunningPtr& running : to_cancel) {
      runtime_->Cancel(running->set, running->ticket, why);
    }
  }

  // An operation was about to start when the step was aborted.
  void AbortBeforeStart(const RandomCall& call) {
    std::lock_guard<std::mutex> lock(mutex_);
    runtime_->AbortStep(*runtime_->process_set(call.set), Key{call.name, 0},
                        number_, why_);
  }

  // What has come is right, and nothing is still waiting after a while.
  Status Wait(const std::string& where) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool told =
        all_told_.wait_for(lock, kStepLimit, [this] { return open_ == 0; });
    for (const RunningPtr& running : running_) {
      if (!told && !running->result) {
        test::Expect(false, HVD_HERE, where + ": an end of " + running->name);
      }
    }
    // A hang would take all the others' limits too.
    if (!told) std::_Exit(1);
    for (const RunningPtr& running : running_) {
      if (running->result->ok()) running->buffers.Check(where);
    }
    return why_;
  }

 private:
  struct Running {
    Running(const RandomCall& call, const ProcessSet& process_set,
            uint64_t salt)
        : name(call.name), set(call.set), buffers(call, process_set, salt) {}
    const std::string name;
    const int set;
    CallBuffers buffers;
    Entry entry;
    uint64_t ticket = 0;
    bool enqueued = false;
    std::optional<Status> result;
  };
  using RunningPtr = std::shared_ptr<Running>;

  void Finish(Running* running, const Status& status) {
    if (!status.ok()) Abort(status);
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(running->result.has_value());  // told once
    running->result = status;
    --open_;
    all_told_.notify_all();
  }

  Runtime* const runtime_;
  const int64_t number_;
  std::mutex mutex_;
  std::condition_variable all_told_;
  std::vector<RunningPtr> running_;
  int open_ = 0;
  Status why_;  // not Ok: aborted
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_STRESS_STEP_H_
