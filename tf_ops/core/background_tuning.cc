// SPDX-License-Identifier: Apache-2.0
// The part of BackgroundLoop for the autotuner: the trace feeds it, and the
// leader hears what it has chosen.
#include <utility>

#include "core/background_loop.h"

namespace hvd {

void BackgroundLoop::Autotune(std::unique_ptr<AutotuneReport> report) {
  Set& global = sets_.front();
  const ChunkLimits chunks = global.executor->chunk_limits();
  Autotuner::Config config;
  config.start = {options_.fusion_bytes, chunks.bytes,
                  options_.batches_in_flight};
  config.most_chunk_bytes = chunks.most_bytes;
  config.warmup_samples = options_.autotune_warmup_samples;
  config.rounds_per_sample = options_.autotune_steps_per_sample;
  config.most_samples = options_.autotune_samples;
  report->set_chunk_knob(chunks.knob);
  // A function is copied, and shares it.
  const std::shared_ptr<AutotuneReport> shared = std::move(report);
  autotuner_ = std::make_unique<Autotuner>(
      config,
      [shared](const Autotuner::Sample& sample) { shared->Add(sample); });
  timeline_.trace()->FeedTo(autotuner_.get(), backend_->topology().size);
}

void BackgroundLoop::Tune() {
  if (autotuner_ == nullptr) return;
  if (const std::optional<Tuning> change = autotuner_->TakeChange()) {
    sets_.front().negotiator->Tune(*change);
  }
  if (autotuner_->settled()) EndTuning();
}

void BackgroundLoop::EndTuning() {
  timeline_.trace()->FeedTo(nullptr, 0);
  autotuner_.reset();
}

}  // namespace hvd
