// SPDX-License-Identifier: Apache-2.0
// Compares what blocks cost in both ways.
#include "transport/stream_choice.h"

namespace hvd {
namespace {

// Smaller blocks fit into any cache on their way, and into no clock.
constexpr size_t kLeastBytes = 16 << 10;
// What is packed before the first trial, when memory is no longer new, and from
// one to the next: in the slower way a trial costs 2 % then.
constexpr size_t kFirstTrialBytes = 8 << 20;
constexpr size_t kTrialBytes = 128 << 20;
constexpr int kTrialBlocks = 3;
// Streaming begins where storing into the cache takes so many times as long,
// and ends where it no longer takes so many times as long. Where caches are
// shared it is 0.5 to 1.4, and where they are not, 5 to 7: readers, too, have
// longer ways to what has been streamed.
constexpr double kBegins = 2.5;
constexpr double kEnds = 1.75;

}  // namespace

StreamChoice::StreamChoice(int64_t policy)
    : policy_(policy),
      streams_(policy == kAlways),
      bytes_to_trial_(kFirstTrialBytes) {}

bool StreamChoice::IsMeasured(size_t bytes) const {
  return policy_ == kMeasured && bytes >= kLeastBytes;
}

bool StreamChoice::Streams(size_t bytes) const {
  return streams_ && (policy_ == kAlways || bytes >= kLeastBytes);
}

bool StreamChoice::Next(size_t bytes) {
  if (!IsMeasured(bytes)) return Streams(bytes);
  if (trial_blocks_ == 0 && bytes >= bytes_to_trial_) StartTrial();
  if (trial_blocks_ > 0) return !streams_;
  bytes_to_trial_ -= bytes;
  return streams_;
}

void StreamChoice::Took(size_t bytes, bool streamed, double seconds) {
  if (!IsMeasured(bytes)) return;
  Cost& cost = streamed ? streamed_ : cached_;
  cost.Add(seconds / static_cast<double>(bytes));
  if (streamed != streams_) {
    if (--trial_blocks_ == 0) Decide();
  } else if (!streams_ && LooksWorth(kBegins)) {
    // The other way's time is of long ago.
    StartTrial();
  }
}

void StreamChoice::StartTrial() {
  trial_blocks_ = kTrialBlocks;
  bytes_to_trial_ = kTrialBytes;
}

void StreamChoice::Decide() {
  streams_ = LooksWorth(streams_ ? kEnds : kBegins);
}

bool StreamChoice::LooksWorth(double times) const {
  const double cached = cached_.least(), streamed = streamed_.least();
  const bool are_known = cached < kUnknown && streamed < kUnknown;
  return are_known && cached > times * streamed;
}

}  // namespace hvd
