// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for what the framework's threads ask of it.
#include <utility>

#include "core/background_loop.h"
#include "core/quoted.h"

namespace hvd {
namespace {

// What is on the wire when its step is aborted may complete for so long. A peer
// that is slow or stopped must not hold the caller up.
constexpr std::chrono::milliseconds kCancelGrace{100};

}  // namespace

bool BackgroundLoop::TakeCommands() {
  commands_.clear();
  queue_->Take(&commands_);
  if (!commands_.empty()) timeline_.trace()->Cycle();
  for (Command& command : commands_) {
    std::visit([this](auto& value) { Apply(std::move(value)); }, command);
  }
  return !commands_.empty();
}

void BackgroundLoop::Apply(EnqueueCommand&& command) {
  ends_.Submitted(command.entry->request.key.name);
  if (Set* const set = FindSet(command.serial)) {
    set->negotiator->Submit(command.entry);
    command.entry.reset();
    return;
  }
  // The set has gone since the caller found it.
  const Status why =
      FailedPrecondition(Quoted(command.entry->request.key.name) +
                         " cannot start: its process set was removed by "
                         "remove_process_set.");
  std::exchange(command.entry, nullptr)->done(why);
}

void BackgroundLoop::Apply(JoinCommand&& command) {
  if (Set* const set = FindSet(command.serial)) {
    set->negotiator->Join(command.call);
    command.call.reset();
    return;
  }
  const Status why = FailedPrecondition(
      "join cannot start: its process set was removed by remove_process_set.");
  std::exchange(command.call, nullptr)->done(why, -1);
}

void BackgroundLoop::Apply(CancelCommand command) {
  Set* set = FindSet(command.serial);
  if (set == nullptr) return;  // all of it has failed
  if (set->negotiator->Cancel(command.ticket, command.why)) return;
  // The call may still complete on the wire. The peers learn of the aborted
  // step all the same.
  if (const Request* request = set->executor->FindRunning(command.ticket)) {
    set->negotiator->AbortStep(request->key, request->step, command.why);
    // Peers must not take a cancelled batch for one that the failure was found
    // in.
    set->executor->Unwant(command.ticket, Cancelled(command.why.message()),
                          now_ + kCancelGrace);
  }
}

void BackgroundLoop::Apply(AbortStepCommand command) {
  Set* const set = FindSet(command.serial);
  if (set == nullptr) return;
  set->negotiator->AbortStep(command.key, command.step, command.why);
}

void BackgroundLoop::Apply(EndScopeCommand command) {
  Set* const set = FindSet(command.serial);
  if (set == nullptr) return;
  set->negotiator->EndScope(command.name_prefix, command.text);
  ends_.EndScope(std::move(command.name_prefix), std::move(command.text));
}

void BackgroundLoop::Apply(EndCommand command) {
  // This first: without memory for the rest, shutdown must not wait for ever.
  stopping_ = stopping_ || !command.failed;
  EndSelf(command);
}

void BackgroundLoop::Apply(TimelineCommand command) {
  if (command.file != nullptr) {
    timeline_.Start(std::move(command.file), command.mark_cycles, now_);
  } else {
    timeline_.Stop(std::move(command.stopped), now_);
  }
}

}  // namespace hvd
