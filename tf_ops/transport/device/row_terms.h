// SPDX-License-Identifier: Apache-2.0
// RowTerms: which rows of a list a GPU adds up. See RowSums.
#ifndef HVD_TRANSPORT_DEVICE_ROW_TERMS_H_
#define HVD_TRANSPORT_DEVICE_ROW_TERMS_H_

#include <cstdint>
#include <vector>

#include "core/span.h"

namespace hvd {

struct RowTerms {
  std::vector<uint32_t> begins, sources;

  int64_t rows() const { return static_cast<int64_t>(begins.size()) - 1; }
};

// Rows that are added up: where in the result each goes, and the number of the
// first.
struct RowList {
  Span<uint32_t> places;
  int64_t first;
};

// Each of `rows` rows is the sum of those that go there, list by list.
[[nodiscard]] RowTerms TermsOf(const std::vector<RowList>& lists, int64_t rows);

// Cuts sums of more than `most` terms into parts, of which `terms` is left.
// Returns which parts are added up. Where no sum has so many it does nothing,
// and returns terms without begins.
[[nodiscard]] RowTerms CutTerms(uint32_t most, RowTerms* terms);

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_ROW_TERMS_H_
