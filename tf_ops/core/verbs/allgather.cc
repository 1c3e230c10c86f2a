// SPDX-License-Identifier: Apache-2.0
// The rules of allgather: every rank gets all ranks' rows, in rank order.
#include "core/verbs/verb_rules.h"

namespace hvd {
const VerbRules& AllgatherRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->first_dim_varies = true;
    made->tells_sizes_in_log = true;
    made->finite_check = FiniteCheck::kInput;
    made->properties = {RowShapeProperty()};
    // The dtype does not matter, because bytes are moved.
    made->fuses = [](const Signature&, const Signature&) { return true; };
    made->scalar_lacks = "dimension to gather along";
    return made;
  }();
  return *rules;
}

}  // namespace hvd
