// SPDX-License-Identifier: Apache-2.0
// The part of Executor that ends batches before the wire is done with them.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/executor.h"

namespace hvd {

void Executor::NoteBreakdown(uint64_t number, const Status& status) {
  if (!breakdown_.has_value() || number < breakdown_->log_number) {
    breakdown_ = Breakdown{number, status};
  }
}

void Executor::BreakDown(const OnGpu& batch, const Status& why) {
  for (const auto& [number, running] : running_) {
    if (running.lane == batch.lane && running.id == batch.id) {
      NoteBreakdown(number, why);
    }
  }
}

void Executor::Unwant(uint64_t ticket, const Status& why,
                      Clock::time_point limit) {
  for (auto& [number, running] : running_) {
    for (const Outstanding& tensor : running.batch->tensors) {
      if (tensor.entry->ticket != ticket || tensor.cancelled) continue;
      if (running.unwanted++ > 0) return;
      running.why = why;
      running.limit = limit;
      return;
    }
  }
}

void Executor::EndUnwanted(Clock::time_point now) {
  std::vector<Running> due;
  for (const auto& [number, running] : running_) {
    if (running.unwanted == 0 || now < running.limit) continue;
    const std::vector<Outstanding>& tensors = running.batch->tensors;
    const auto wanted = std::count_if(
        tensors.begin(), tensors.end(),
        [](const Outstanding& tensor) { return !tensor.cancelled; });
    if (running.unwanted < static_cast<size_t>(wanted)) continue;
    due.push_back(running);
  }
  // Cancel takes them out of running_.
  for (const Running& late : due) late.lane->Cancel(late.id, late.why);
}

void Executor::MemberEnded(const Status& why, bool has_failed) {
  for (const auto& lane : lanes_.transports) {
    if (lane != nullptr) lane->MemberEnded(why, has_failed);
  }
}

void Executor::Close(const Status& why) {
  for (const auto& lane : lanes_.transports) {
    if (lane != nullptr) lane->Close(why);
  }
}

void Executor::CancelAfter(uint64_t log_number, const Status& why) {
  std::vector<Running> late;
  for (auto& [number, running] : running_) {
    if (number <= log_number || running.is_cancelled) continue;
    running.is_cancelled = true;
    late.push_back(running);
    // Batches without results would leave the wire only if the ended member
    // took part.
    if (running.lane == &host()) {
      cancelled_on_host_.push_back(running.id);
    } else {
      cancelled_on_gpus_ += running.lane->count_of(running.id);
    }
  }
  for (const Running& running : late) running.lane->Cancel(running.id, why);
}

void Executor::Abandon(const Status& why) {
  CancelAfter(0, why);
  while (!running_.empty()) {
    const auto batch = running_.begin()->second.batch;
    Finish(batch, Seen(), why);
  }
}

}  // namespace hvd
