// SPDX-License-Identifier: Apache-2.0
// LaneOffer: what a rank tells its set, so that all decide in the same way
// whether their GPUs reduce among themselves.
#ifndef HVD_TRANSPORT_DEVICE_LANE_OFFER_H_
#define HVD_TRANSPORT_DEVICE_LANE_OFFER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/host_map.h"
#include "core/status.h"

namespace hvd {

// What a rank offers for the decision. The bytes cross the wire as they are:
// all ranks are of one build.
struct LaneOffer {
  static constexpr size_t kGpuBytes = 16;
  static constexpr size_t kTextBytes = 360;
  static constexpr size_t kKernelTextBytes = 160;

  int32_t version = 0;          // of the library
  int32_t has_kernels = 0;      // its GPU can copy elements
  int32_t is_hierarchical = 0;  // see LaneOwner
  int32_t may_share_gpu = 0;    // see LaneOwner
  int32_t trial_limit_ms = 0;   // the shortest one holds for all
  // Whether the refusal may be what another rank's has led to. The least tells
  // most.
  static constexpr int32_t kNoGuess = 0;
  static constexpr int32_t kWaited = 1;  // for too long, maybe for that rank
  static constexpr int32_t kToldByPeer = 2;  // which has a reason of its own
  int32_t guess = kNoGuess;
  char gpu[kGpuBytes] = {};
  // Why this rank cannot. Empty: it can. Zero-terminated.
  char refusal[kTextBytes] = {};
  // Why it has no kernels. Zero-terminated.
  char no_kernels[kKernelTextBytes] = {};

  // A text that is too long loses its end.
  void Refuse(const std::string& why);
  void HasNoKernels(const std::string& why);
};

// Whether GPUs are to work among themselves within hosts only: there are
// several, and a rank says so.
[[nodiscard]] bool IsByHost(const std::vector<LaneOffer>& offers,
                            const HostMap& hosts);

// Which GPU has no kernels, and why. Empty: all have. The first one's words.
[[nodiscard]] std::string LackOfKernels(const std::vector<LaneOffer>& offers,
                                        const std::vector<int>& job_ranks);

// Ok, or why not: FailedPrecondition, in words that begin in the middle of a
// sentence. The same on all ranks. `offers` are by rank of the set. A refusal
// that is a guess is told if there is no better one. The words are of
// `job_ranks`, or of these where that is empty.
[[nodiscard]] Status Decide(const std::vector<LaneOffer>& offers,
                            const HostMap& hosts,
                            const std::vector<int>& job_ranks = {});

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_LANE_OFFER_H_
