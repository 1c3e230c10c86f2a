// SPDX-License-Identifier: Apache-2.0
// Span: some elements in a row that another owns.
#ifndef HVD_CORE_SPAN_H_
#define HVD_CORE_SPAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

template <typename T>
class Span {
 public:
  Span() = default;
  Span(const T* data, int64_t size) : data_(data), size_(size) {}
  // Not explicit: a vector is passed where a span is asked for.
  Span(const std::vector<T>& vector)
      : Span(vector.data(), static_cast<int64_t>(vector.size())) {}

  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  const T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_SPAN_H_
