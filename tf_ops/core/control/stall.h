// SPDX-License-Identifier: Apache-2.0
// Stall: which ranks keep which tensors waiting, and the messages about it.
#ifndef HVD_CORE_CONTROL_STALL_H_
#define HVD_CORE_CONTROL_STALL_H_

#include <string>
#include <vector>

namespace hvd {

// Tensors, or calls that are none of tensors, that wait for the same ranks.
struct Stall {
  std::vector<int> missing;        // ranks of the job that have not asked
  std::vector<std::string> names;  // of what the others have asked for
  double waited_s = 0;             // of the one that has waited longest
  bool are_calls = false;          // not tensors
  // For each rank of `missing`: the one that reports for it, and may not have
  // passed on what it said. Empty: each reports for itself.
  std::vector<int> reporters = {};
};

// A rank whose background thread does not answer.
struct Silence {
  int rank = 0;  // of the job
  double silent_s = 0;
};

// Such as "'a', 'b' and 3 more".
std::string NameSome(std::vector<std::string> names);

// Such as "12 s".
std::string WholeSeconds(double seconds);

// The texts of warnings. `missing` and `rank` name ranks and their hosts.
// `names` may be empty.
std::string StallWarning(const Stall& stall, const std::string& missing);
// Says that tensors wait for this rank's GPU, or, where not `is_own`, that they
// are with the GPUs of several ranks. `rank` names this rank and its host.
std::string GpuWarning(const Stall& stall, bool is_own,
                       const std::string& rank);
std::string SilenceWarning(const Silence& silence, const std::string& rank,
                           const std::vector<std::string>& names);

// The texts of the failure that ends the job. They come after "rank 1 (host)
// failed: ". `others` names further ranks that are missing. It may be empty.
std::string StallFailure(const Stall& stall, const std::string& others,
                         bool is_silent, double limit_s);
std::string SilenceFailure(const Silence& silence,
                           const std::vector<std::string>& names,
                           double limit_s);
std::string GpuFailure(const Stall& stall, bool is_own, double limit_s);

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_STALL_H_
