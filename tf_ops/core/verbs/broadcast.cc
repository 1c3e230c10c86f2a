// SPDX-License-Identifier: Apache-2.0
// The rules of broadcast: every rank gets the root's tensor.
#include "core/verbs/verb_rules.h"

namespace hvd {

const VerbRules& BroadcastRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->properties = {
        {"root rank", "Pass the same root_rank on every rank.",
         [](const Signature& s, const std::vector<int>& job_ranks) {
           return std::to_string(job_ranks[static_cast<size_t>(s.root)]);
         }},
        ShapeProperty()};
    made->fuses = [](const Signature& a, const Signature& b) {
      return a.root == b.root;
    };
    made->absent_rank_is_missed = [](const Signature& signature, int rank) {
      return signature.root == rank;
    };
    return made;
  }();
  return *rules;
}

}  // namespace hvd
