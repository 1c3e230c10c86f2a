// SPDX-License-Identifier: Apache-2.0
// Sorts rows by where they go, by counting.
#include "transport/device/row_terms.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hvd {

RowTerms TermsOf(const std::vector<RowList>& lists, int64_t rows) {
  RowTerms terms;
  std::vector<uint32_t>& begins = terms.begins;
  begins.resize(static_cast<size_t>(rows) + 1, 0);
  for (const RowList& list : lists) {
    for (const uint32_t place : list.places) ++begins[place + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  terms.sources.resize(begins.back());
  for (const RowList& list : lists) {
    auto source = static_cast<uint32_t>(list.first);
    for (const uint32_t place : list.places) {
      terms.sources[begins[place]++] = source++;
    }
  }
  // Each has come to where the next one began.
  std::copy_backward(begins.begin(), begins.end() - 1, begins.end());
  begins[0] = 0;
  return terms;
}

RowTerms CutTerms(uint32_t most, RowTerms* terms) {
  const auto rows = static_cast<size_t>(terms->rows());
  const auto count = [&](size_t row) {
    return terms->begins[row + 1] - terms->begins[row];
  };
  bool has_many = false;
  for (size_t row = 0; row < rows; ++row) has_many |= count(row) > most;
  if (!has_many) return {};
  RowTerms of_parts;
  std::vector<uint32_t> parts;  // where each begins
  for (size_t row = 0; row < rows; ++row) {
    of_parts.begins.push_back(static_cast<uint32_t>(parts.size()));
    for (uint32_t done = 0; done < count(row); done += most) {
      parts.push_back(terms->begins[row] + done);
    }
  }
  of_parts.begins.push_back(static_cast<uint32_t>(parts.size()));
  of_parts.sources.resize(parts.size());
  std::iota(of_parts.sources.begin(), of_parts.sources.end(), 0);
  parts.push_back(terms->begins.back());
  terms->begins = std::move(parts);
  return of_parts;
}

}  // namespace hvd
