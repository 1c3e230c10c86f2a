// SPDX-License-Identifier: Apache-2.0
// Compares the times of blocks that are written in the two ways.
#include "cpu/stream_choice.h"

namespace hvd {
namespace {

// Smaller blocks fit into any cache, and are too short to be timed.
constexpr size_t kLeastBytes = 16 << 10;
// So much is packed before the first trial, when memory is no longer new, and
// between trials. A trial of the slower way then costs 2 %.
constexpr size_t kFirstTrialBytes = 8 << 20;
constexpr size_t kTrialBytes = 128 << 20;
constexpr int kTrialBlocks = 3;
// Streaming begins when plain stores take kBegins times as long, and ends when
// they take less than kEnds times as long. The ratio is 0.5 to 1.4 where cores
// share a cache, and 5 to 7 where they do not. kBegins is well above 1 because
// streamed data is slower to read too.
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
    // The other way was timed long ago.
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
