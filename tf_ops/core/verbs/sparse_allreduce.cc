// SPDX-License-Identifier: Apache-2.0
// The rules of sparse_allreduce: rows with ids are reduced, and every rank gets
// a row for each id of any rank.
//
// How many rows a rank has changes from call to call, as in an allgather. A
// rank that has joined has none.
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

std::string TableRowsText(const Signature& s, const std::vector<int>&) {
  std::string text;
  for (int64_t rows : s.table_rows) {
    if (!text.empty()) text += ' ';
    text += rows < 0 ? "unknown" : std::to_string(rows);
  }
  return text;
}

std::vector<Property> Properties() {
  std::vector<Property> properties = {
      RowShapeProperty(),
      {"number of rows of the table",
       "Make the table equally large on every rank; of tf.IndexedSlices it is "
       "the dense_shape.",
       TableRowsText},
      {"dtype of the indices", "Cast them to the same dtype on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(Name(s.id_dtype));
       }},
      {"algorithm", "Set HVD_SPARSE_ALGO to the same on every rank.",
       [](const Signature& s, const std::vector<int>&) {
         return std::string(Name(s.sparse_algo));
       }}};
  for (Property& property : ReductionProperties()) {
    properties.push_back(std::move(property));
  }
  return properties;
}

}  // namespace

const VerbRules& SparseAllreduceRules() {
  static const VerbRules* const rules = [] {
    auto* made = new VerbRules;
    made->reduces = true;
    made->first_dim_varies = true;
    made->has_ids = true;
    made->tells_sizes_in_log = true;
    made->finite_check = FiniteCheck::kOnWire;
    made->properties = Properties();
    made->fuses = [](const Signature& a, const Signature& b) {
      return ReduceAlike(a, b) && a.id_dtype == b.id_dtype &&
             a.sparse_algo == b.sparse_algo;
    };
    made->scalar_lacks = "rows that ids could stand for";
    return made;
  }();
  return *rules;
}

}  // namespace hvd
