// SPDX-License-Identifier: Apache-2.0
// Greedy fusion: a tensor joins the open batch of its kind if it fits.
#include "core/control/fusion.h"

#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// A batch that may still grow.
struct OpenBatch {
  const Signature* kind;
  int64_t bytes;
  size_t position;  // in the plan
};

}  // namespace

bool MoveAlike(const Signature& a, const Signature& b) {
  return a.verb == b.verb && a.memory == b.memory &&
         RulesOf(a.verb).fuses(a, b);
}

std::vector<std::vector<size_t>> PlanFusion(
    const std::vector<FusionCandidate>& candidates, int64_t fusion_bytes) {
  std::vector<std::vector<size_t>> plan;
  std::vector<OpenBatch> open;  // one for each kind
  for (size_t i = 0; i < candidates.size(); ++i) {
    const FusionCandidate& candidate = candidates[i];
    auto batch = open.begin();
    while (batch != open.end() &&
           !MoveAlike(*batch->kind, *candidate.signature)) {
      ++batch;
    }
    if (batch == open.end()) {
      batch = open.insert(open.end(), {candidate.signature, 0, plan.size()});
      plan.emplace_back();
    } else if (batch->bytes + candidate.bytes > fusion_bytes) {
      *batch = {candidate.signature, 0, plan.size()};
      plan.emplace_back();
    }
    batch->bytes += candidate.bytes;
    plan[batch->position].push_back(i);
  }
  return plan;
}

}  // namespace hvd
