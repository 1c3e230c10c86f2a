// SPDX-License-Identifier: Apache-2.0
// The rules of allreduce: every rank gets all ranks' tensors, reduced.
#include "core/verbs/verb_rules.h"

namespace hvd {

const VerbRules& AllreduceRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->reduces = true;
    made->offers_adasum = true;
    made->finite_check = FiniteCheck::kOnWire;
    made->properties = ReductionProperties();
    made->properties.insert(made->properties.begin(), ShapeProperty());
    made->fuses = ReduceAlike;
    return made;
  }();
  return *rules;
}

}  // namespace hvd
