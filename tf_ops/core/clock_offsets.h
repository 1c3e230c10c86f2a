// SPDX-License-Identifier: Apache-2.0
// ClockOffsets: how far other hosts' clocks are from this rank's.
#ifndef HVD_CORE_CLOCK_OFFSETS_H_
#define HVD_CORE_CLOCK_OFFSETS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace hvd {

// A host's clock reads `offset_ns` more than this one's, give or take
// `error_ns`.
struct ClockOffset {
  int64_t offset_ns = 0;
  int64_t error_ns = 0;
};

// Asks and answers give it: the answer has the time of its host's clock, which
// was read at some moment between the question and the arrival of the answer.
// So the middle of the two is wrong by half of the time between them at most.
// The shortest time between them wins. As clocks drift, an old answer counts
// for less and less.
//
// Reads no clock. Times are SteadyNow_ns.
class ClockOffsets {
 public:
  explicit ClockOffsets(int hosts) : best_(hosts) {}

  // An answer. The offset, if it is now known better than before.
  std::optional<ClockOffset> Answered(int host, int64_t asked_ns,
                                      int64_t clock_ns, int64_t arrived_ns);

 private:
  struct Best {
    ClockOffset offset;
    int64_t arrived_ns = 0;
  };
  std::vector<std::optional<Best>> best_;  // by host
};

}  // namespace hvd

#endif  // HVD_CORE_CLOCK_OFFSETS_H_
