// SPDX-License-Identifier: Apache-2.0
// Takes commands, exchanges messages, advances batches, and waits in between.
#include "core/background_loop.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "cpu/spin_time.h"

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// This thread comes by more often than that, unless its process was stopped.
constexpr milliseconds kLongestPass{2000};

// A wire that cannot ring is polled. An answer is often near, and the shortest
// sleep takes several times its length. So for a moment this thread only gives
// way to others between two looks. After that it sleeps for about a quarter of
// the time that it has already waited.
constexpr microseconds kPollAtOnce{200};
constexpr microseconds kShortestSleep{20};
constexpr microseconds kLongestBusySleep{500};
constexpr microseconds kLongestIdleSleep{10000};
// A wire that rings needs no polling. These are limits in case a bell is lost.
constexpr microseconds kRingingBusySleep{50000};
constexpr microseconds kRingingIdleSleep{1000000};
// While peers owe nothing, this thread spins no longer than that.
constexpr microseconds kIdleSpin{60};

// Python's handlers run on the main thread, so this thread blocks the process's
// signals. It does not block those of a fault of its own. Blocked, these would
// end the process without the trace that their handlers write. Timer slack
// would stretch the thread's short sleeps.
void PrepareThread() {
  sigset_t others;
  sigfillset(&others);
  for (int fault :
       {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&others, fault);
  }
  pthread_sigmask(SIG_BLOCK, &others, nullptr);
#ifdef __linux__
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  pthread_setname_np(pthread_self(), "hvd_tf");
#endif
}

}  // namespace

BackgroundLoop::BackgroundLoop(Backend* backend, DeviceLanes* device_lanes,
                               CommandQueue* queue, SetRegistry* registry,
                               const Options& options,
                               std::shared_ptr<StackRequests> stacks,
                               CommCounters* counters)
    : backend_(backend),
      device_lanes_(device_lanes),
      queue_(queue),
      registry_(registry),
      doorbell_(backend->doorbell()),
      channel_(&backend->channel(), counters),
      timeline_(backend->topology(), &channel_, counters),
      options_(options),
      rings_(backend->arrivals_ring()),
      spin_(SpinTime(options.spin_us)),
      names_(backend->topology().hosts),
      ends_(backend->topology(), &channel_),
      peer_watch_(backend, &channel_, options, std::move(stacks), awake_),
      gpu_watch_(options, names_.Of(backend->topology().rank)) {}

BackgroundLoop::~BackgroundLoop() = default;

void BackgroundLoop::Run() {
  PrepareThread();
  now_ = last_moved_ = last_watch_ = Clock::now();
  while (!stopping_) {
    if (PassOrBreak()) {
      last_moved_ = now_;
    } else {
      Wait();
    }
  }
  Drain();
  EndTuning();
}

bool BackgroundLoop::Pass() {
  const Clock::time_point last = std::exchange(now_, Clock::now());
  awake_ += std::min<Clock::duration>(now_ - last, kLongestPass);
  bool moved = TakeCommands();
  moved |= ReceiveMessages();
  Tune();
  moved |= AdvanceSets();
  ExecuteReady();
  moved |= ChangeSets();
  moved |= SendMessages();
  moved |= ProgressBatches();
  FlushChannel();
  if (now_ - last_watch_ >= peer_watch_.interval()) Watch();
  timeline_.Look(now_);
  return moved;
}

bool BackgroundLoop::AdvanceSets() {
  bool moved = false;
  for (Set& set : sets_) {
    Result<bool> advanced =
        set.negotiator->Advance(set.executor->executed_in_flight(), awake_);
    if (!advanced.ok()) {
      Break(advanced.status().message());
      return true;
    }
    moved |= advanced.value();
  }
  if (ends_.TakeOverdue(now_)) AnswerOverdue();
  return moved;
}

void BackgroundLoop::ExecuteReady() {
  for (Set& set : sets_) ExecuteReady(&set);
}

void BackgroundLoop::ExecuteReady(Set* set) {
  while (std::optional<ReadyItem> item = set->negotiator->TakeReady()) {
    if (auto* batch = std::get_if<ReadyBatch>(&*item)) {
      set->executor->Execute(std::move(*batch));
    } else {
      set->executor->Tune(std::get<Tuning>(*item));
    }
  }
}

bool BackgroundLoop::SendMessages() {
  bool moved = false;
  for (Set& set : sets_) {
    for (auto& message : set.negotiator->TakeMessages()) {
      channel_.Send(set.process_set.ranks[message.rank],
                    std::move(message.bytes));
      moved = true;
    }
  }
  moved |= ends_.Send(now_);
  return moved;
}

bool BackgroundLoop::ProgressBatches() {
  bool moved = false;
  for (Set& set : sets_) {
    moved |= set.executor->Progress();
    set.executor->EndUnwanted(now_);
    if (set.executor->breakdown().has_value()) {
      Break(set.executor->breakdown()->status.message());
    }
  }
  return moved;
}

void BackgroundLoop::FlushChannel() {
  flushing_ = channel_.Flush();
  const Status channel = channel_.status();
  if (channel.ok()) return;
  Break(channel.message());
  // Peers may never hear of what is on the wire here, nor of the end.
  const Status why = PeerLost("this rank failed: " + channel.message());
  for (Set& set : sets_) set.executor->CancelAfter(0, why);
}

bool BackgroundLoop::Busy() const {
  if (flushing_ || ends_.busy(now_)) return true;
  if (set_call_ != nullptr || preparing_.has_value()) return true;
  return std::any_of(sets_.begin(), sets_.end(), [](const Set& s) {
    return !s.negotiator->idle() || s.executor->in_flight() > 0 || s.is_removed;
  });
}

BackgroundLoop::Clock::duration BackgroundLoop::UntilSetsAreDue() const {
  Clock::duration until = kLongestPass;
  for (const Set& set : sets_) {
    const auto due = set.negotiator->due();
    if (due.has_value()) until = std::min(until, *due - awake_);
  }
  return std::max(until, Clock::duration(kShortestSleep));
}

void BackgroundLoop::Wait() {
  const bool busy = Busy();
  const auto due = std::chrono::ceil<microseconds>(UntilSetsAreDue());
  const auto waited =
      std::chrono::duration_cast<microseconds>(Clock::now() - last_moved_);
  if (rings_) {
    const Clock::duration idle =
        std::min(peer_watch_.question_interval().value_or(kLongestPass),
                 timeline_.UntilDue(Clock::now()).value_or(kLongestPass));
    // Not again and again while a peer is late.
    const microseconds spin =
        busy && waited < spin_ ? spin_ - waited : std::min(spin_, kIdleSpin);
    doorbell_->Wait(
        std::min(due, busy ? kRingingBusySleep
                           : std::min(kRingingIdleSleep,
                                      std::chrono::ceil<microseconds>(idle))),
        spin);
    return;
  }
  if (busy && waited < kPollAtOnce) {
    sched_yield();
    return;
  }
  const microseconds longest = busy ? kLongestBusySleep : kLongestIdleSleep;
  doorbell_->Wait(
      std::clamp(waited / 4, kShortestSleep, std::min(due, longest)),
      microseconds(0));
}

BackgroundLoop::Set* BackgroundLoop::FindSet(int serial) {
  for (Set& set : sets_) {
    if (set.process_set.serial == serial) return &set;
  }
  return nullptr;
}

}  // namespace hvd
