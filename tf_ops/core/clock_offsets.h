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
  explicit ClockOffsets(int hosts) : best_(hosts), answers_(hosts, 0) {}

  // An answer. The offset, if it is now known better than before, and settled.
  std::optional<ClockOffset> Answered(int host, int64_t asked_ns,
                                      int64_t clock_ns, int64_t arrived_ns);

  // Whether several answers have come. The first ones come while ranks begin,
  // and may have waited for long. What was moved by them is not moved again.
  bool is_settled(int host) const { return answers_[host] >= kFirstAnswers; }
  // The best offset so far, also if it is not settled.
  std::optional<ClockOffset> Best(int host) const;

 private:
  static constexpr int kFirstAnswers = 5;

  struct Answer {
    ClockOffset offset;
    int64_t arrived_ns = 0;
  };
  std::vector<std::optional<Answer>> best_;  // by host
  std::vector<int> answers_;                 // by host
};

}  // namespace hvd

#endif  // HVD_CORE_CLOCK_OFFSETS_H_
