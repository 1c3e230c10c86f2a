// SPDX-License-Identifier: Apache-2.0
// Compares the times of blocks that are written in the two ways.
#include "cpu/store_choice.h"

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
// data written past the cache is slower to read too.
constexpr double kBegins = 2.5;
constexpr double kEnds = 1.75;

}  // namespace

StoreChoice::StoreChoice(int64_t policy)
    : policy_(policy),
      choice_(policy == kAlways),
      bytes_to_trial_(kFirstTrialBytes) {}

bool StoreChoice::IsMeasured(size_t bytes) const {
  return policy_ == kMeasured && bytes >= kLeastBytes;
}

bool StoreChoice::NonTemporal(size_t bytes) const {
  return choice_ && (policy_ == kAlways || bytes >= kLeastBytes);
}

bool StoreChoice::Next(size_t bytes) {
  if (!IsMeasured(bytes)) return NonTemporal(bytes);
  if (trial_blocks_ == 0 && bytes >= bytes_to_trial_) StartTrial();
  if (trial_blocks_ > 0) return !choice_;
  bytes_to_trial_ -= bytes;
  return choice_;
}

void StoreChoice::Took(size_t bytes, bool non_temporal, double seconds) {
  if (!IsMeasured(bytes)) return;
  Cost& cost = non_temporal ? non_temporal_ : cached_;
  cost.Add(seconds / static_cast<double>(bytes));
  if (non_temporal != choice_) {
    if (--trial_blocks_ == 0) Decide();
  } else if (!choice_ && LooksWorth(kBegins)) {
    // The other way was timed long ago.
    StartTrial();
  }
}

void StoreChoice::StartTrial() {
  trial_blocks_ = kTrialBlocks;
  bytes_to_trial_ = kTrialBytes;
}

void StoreChoice::Decide() { choice_ = LooksWorth(choice_ ? kEnds : kBegins); }

bool StoreChoice::LooksWorth(double times) const {
  const double cached = cached_.least(), non_temporal = non_temporal_.least();
  const bool are_known = cached < kUnknown && non_temporal < kUnknown;
  return are_known && cached > times * non_temporal;
}

}  // namespace hvd
