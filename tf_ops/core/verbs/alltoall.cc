// SPDX-License-Identifier: Apache-2.0
// The rules of alltoall: every rank sends rows of its own to each rank.
//
// How many rows go where is known to the sender alone. The ranks tell each
// other on the wire. So neither the log nor a report has it.
#include "core/verbs/verb_rules.h"

namespace hvd {
const VerbRules& AlltoallRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->first_dim_varies = true;
    made->has_splits = true;
    made->finite_check = FiniteCheck::kInput;
    made->properties = {RowShapeProperty()};
    made->fuses = [](const Signature&, const Signature&) { return true; };
    made->scalar_lacks = "rows to send";
    return made;
  }();
  return *rules;
}

}  // namespace hvd
