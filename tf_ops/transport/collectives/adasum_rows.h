// SPDX-License-Identifier: Apache-2.0
// AdasumRows: what all ranks have of the elements that this rank combines.
#ifndef HVD_TRANSPORT_COLLECTIVES_ADASUM_ROWS_H_
#define HVD_TRANSPORT_COLLECTIVES_ADASUM_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace hvd {

// Memory for one round at a time, which the next round uses again. A tensor has
// a row of each rank, one after another. Thread: the transport's.
class AdasumRows {
 public:
  AdasumRows(int ranks, int64_t element_bytes)
      : ranks_(ranks), element_bytes_(element_bytes) {}

  // For rows of so many elements, by segment. False: there is no memory.
  [[nodiscard]] bool Reserve(std::vector<int64_t> counts);
  std::byte* Row(size_t segment, int rank) { return At(segment, rank, 0); }
  // The row's element `element`.
  std::byte* At(size_t segment, int rank, int64_t element);

 private:
  const int ranks_;
  const int64_t element_bytes_;
  std::unique_ptr<std::byte[]> memory_;
  int64_t bytes_ = 0;
  std::vector<int64_t> counts_, places_;  // of each segment, in elements
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ADASUM_ROWS_H_
