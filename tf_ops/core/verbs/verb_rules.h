// SPDX-License-Identifier: Apache-2.0
// VerbRules: all that the core has to know of a verb.
//
// The stages of a tensor's way ask here, and name no verb themselves. What a
// verb does on the wire is in transport/collectives/.
#ifndef HVD_CORE_VERBS_VERB_RULES_H_
#define HVD_CORE_VERBS_VERB_RULES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/status.h"
#include "core/types.h"

namespace hvd {

// Something that must be equal on all ranks.
struct Property {
  const char* name;
  const char* remedy;
  // The value of a signature in words. `job_ranks` are the members of the set.
  std::function<std::string(const Signature&,
                            const std::vector<int>& job_ranks)>
      value;
};

// When values that are not finite are looked for, if that is asked for.
enum class FiniteCheck : uint8_t {
  kNever,
  kInput,   // before the batch is on the wire
  kOnWire,  // by the transport, as the elements cross the wire
};

struct VerbRules {
  // Elements are combined with those of other ranks. So dtype, wire_dtype,
  // reduce_op and the scales count. Other verbs move bytes.
  bool reduces = false;
  // The verb gives every rank whole tensors, so it may weigh them by Adasum.
  bool offers_adasum = false;
  // The first dimension of each shape may differ between ranks and from call to
  // call. A scalar has none, so it is refused. Outputs are allocated once all
  // sizes are known.
  bool first_dim_varies = false;
  // Each rank divides its rows between the ranks: see Entry::splits.
  bool has_splits = false;
  // Rows have ids, and the result has one row for each id of any rank.
  bool has_ids = false;
  // Small sets have these first dimensions in the log; see SizesInLog.
  bool tells_sizes_in_log = false;
  // A batch of it goes over a transport. If not, the log's record is all.
  bool uses_wire = true;
  FiniteCheck finite_check = FiniteCheck::kNever;
  // What must be equal on all ranks, beside what is so for every verb. In the
  // order in which differences are looked for.
  std::vector<Property> properties;
  // Whether tensors of two signatures of this verb and one memory may be in one
  // batch.
  bool (*fuses)(const Signature& a, const Signature& b) = nullptr;
  // Whether a call makes no sense without that rank of the set, which has
  // joined. Null: any rank may have.
  bool (*absent_rank_is_missed)(const Signature& signature, int rank) = nullptr;
  // What a scalar lacks for it, for errors. Null: scalars are welcome.
  const char* scalar_lacks = nullptr;
};

// The rules of each verb, in a file of its name beside this one. They live as
// long as the process.
#define HVD_DECLARE_RULES(verb, number, text) const VerbRules& verb##Rules();
HVD_FOR_EACH_VERB(HVD_DECLARE_RULES)
#undef HVD_DECLARE_RULES

[[nodiscard]] const VerbRules& RulesOf(Verb verb);

// Whether the log of a set of `size` ranks has the first dimensions of all
// ranks. They are one number for each rank, and every rank gets them. So in
// larger sets the transport exchanges them.
inline constexpr int kMostRanksWithSizesInLog = 32;
[[nodiscard]] inline bool SizesInLog(Verb verb, int size) {
  return RulesOf(verb).tells_sizes_in_log && size <= kMostRanksWithSizesInLog;
}

// Whether the signatures are equal in everything that must not change from step
// to step.
[[nodiscard]] bool SameButFirstDims(const Signature& a, const Signature& b);

// Dimension 0 of each shape of the signature. 0 for a scalar.
void AppendFirstDims(const Signature& signature, Shape* dims);
[[nodiscard]] Shape FirstDims(const Signature& signature);

// Elements of a row: of all dimensions but the first.
[[nodiscard]] int64_t RowCount(const Shape& shape);

// The bytes that an agreed tensor moves, for fusion. `first_dims` has dimension
// 0 of [shape][rank], or nothing where the log does not have it.
[[nodiscard]] int64_t FusionBytes(
    const Signature& signature,
    const std::vector<std::vector<int64_t>>& first_dims, int size);

// Properties that several verbs have.
[[nodiscard]] Property ShapeProperty();
[[nodiscard]] Property RowShapeProperty();
// The reduce op, the scales and the compression.
[[nodiscard]] std::vector<Property> ReductionProperties();
// Whether dtype, wire dtype, op and scales are equal.
[[nodiscard]] bool ReduceAlike(const Signature& a, const Signature& b);

// The buffers of a tensor of the verb: with ids there are two.
[[nodiscard]] inline size_t BuffersOf(Verb verb) {
  return RulesOf(verb).has_ids ? 2 : 1;
}

}  // namespace hvd

#endif  // HVD_CORE_VERBS_VERB_RULES_H_
