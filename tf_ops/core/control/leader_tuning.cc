// SPDX-License-Identifier: Apache-2.0
// The part of Leader that lets an Autotuner choose the values.
#include <utility>

#include "core/control/leader.h"

namespace hvd {

void Leader::Autotune(std::unique_ptr<Autotuner> autotuner) {
  autotuner_ = std::move(autotuner);
}

void Leader::Tune(int in_flight, Clock::time_point now) {
  if (in_flight == 0 && agreed_.empty() && planned_.empty()) {
    autotuner_->Idle(now);
  }
  if (const std::optional<Tuning> change = autotuner_->TakeChange()) {
    tuning_ = *change;
    tuning_news_ = change;
  }
  if (autotuner_->settled()) autotuner_.reset();
}

}  // namespace hvd
