// SPDX-License-Identifier: Apache-2.0
// Greedy fusion: a tensor joins the open batch of its kind if it fits.
#include "core/control/fusion.h"

#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// A batch that may still grow.
struct OpenBatch {
  const FusionCandidate* kind;
  int64_t bytes;
  size_t position;  // in the plan
};

bool TravelTogether(const FusionCandidate& a, const FusionCandidate& b) {
  if (!MoveAlike(*a.signature, *b.signature)) return false;
  if (a.absent == nullptr || b.absent == nullptr) return a.absent == b.absent;
  return *a.absent == *b.absent;
}

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
    while (batch != open.end() && !TravelTogether(*batch->kind, candidate)) {
      ++batch;
    }
    if (batch == open.end()) {
      batch = open.insert(open.end(), {&candidate, 0, plan.size()});
      plan.emplace_back();
    } else if (batch->bytes + candidate.bytes > fusion_bytes) {
      *batch = {&candidate, 0, plan.size()};
      plan.emplace_back();
    }
    batch->bytes += candidate.bytes;
    plan[batch->position].push_back(i);
  }
  return plan;
}

}  // namespace hvd
