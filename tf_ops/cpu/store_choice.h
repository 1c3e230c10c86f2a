// SPDX-License-Identifier: Apache-2.0
// StoreChoice: chooses how blocks that peers read are written.
#ifndef HVD_CPU_STORE_CHOICE_H_
#define HVD_CPU_STORE_CHOICE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace hvd {

// There are two ways: plain stores, and non-temporal stores. Cores
// that share a cache hand a block over in it. Where they share none, a plain
// store to a line that a peer has read must first take the line from the peer's
// core. A Zen 4 packs at 2.5 GB/s then, and at 18 by non-temporal stores. On
// cores of one complex it is 15 and 11.
//
// No file says which it is, because ranks move, and so do a guest's processors.
// So blocks are timed. Now and then three of them are written in the other way.
//
// The choice changes no bit of any result. A rank has one, for the transports
// of all its sets. Background thread only.
class StoreChoice {
 public:
  enum Policy : int64_t { kMeasured = -1, kNever = 0, kAlways = 1 };

  // `policy` is HVD_SHM_NON_TEMPORAL.
  explicit StoreChoice(int64_t policy = kMeasured);

  // Whether to write past the cache the next block, which has so many bytes.
  // Call Took once it is packed.
  bool Next(size_t bytes);
  void Took(size_t bytes, bool non_temporal, double seconds);

  // The same for a block that is written while others are read. It is not
  // timed, because its time says nothing.
  bool NonTemporal(size_t bytes) const;

 private:
  // The seconds for each byte of the last few blocks written in one way.
  struct Cost {
    std::array<double, 3> seconds = {kUnknown, kUnknown, kUnknown};
    void Add(double last) { seconds = {seconds[1], seconds[2], last}; }
    // The least, because a thread may lose its core at any moment.
    double least() const {
      return *std::min_element(seconds.begin(), seconds.end());
    }
  };
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  bool IsMeasured(size_t bytes) const;
  void StartTrial();
  void Decide();
  // Whether plain stores take more than so many times as long as the other way.
  bool LooksWorth(double times) const;

  const int64_t policy_;
  bool choice_;
  Cost cached_, non_temporal_;
  size_t bytes_to_trial_;
  int trial_blocks_ = 0;  // still to write in the other way
};

}  // namespace hvd

#endif  // HVD_CPU_STORE_CHOICE_H_
