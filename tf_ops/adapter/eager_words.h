// SPDX-License-Identifier: Apache-2.0
// EagerWords: what an eager call says beside its attributes.
//
// TensorFlow keeps a kernel for each set of attributes of an eager op, for
// ever. A program may give every call a name of its own. Such a call puts the
// name here. Its attribute says where, and is one of few.
#ifndef HVD_ADAPTER_EAGER_WORDS_H_
#define HVD_ADAPTER_EAGER_WORDS_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace hvd {

// In place of the attributes tensor_name, exact_prescale and exact_postscale.
struct EagerWords {
  std::string name;
  std::string prescale = "1";
  std::string postscale = "1";
};

// The words of calls whose kernels have not begun. hvd_tf puts them there just
// before the op, and the kernel takes them. There is one table for the process.
// Any thread.
class EagerWordsTable {
 public:
  static constexpr int kPlaces = 64;

  // Returns a number that no other words get. Their place is number % kPlaces.
  // -1: all places are taken.
  [[nodiscard]] int64_t Put(EagerWords words);

  // Nothing: there are none.
  [[nodiscard]] std::optional<EagerWords> Take(int place);

  // For an op that has failed. Its kernel may have taken them.
  void Drop(int64_t number);

 private:
  struct Place {
    int64_t number = -1;  // -1: it is free
    EagerWords words;
  };

  std::mutex mutex_;
  int64_t put_ = 0;
  std::array<Place, kPlaces> places_;
};

EagerWordsTable& GetEagerWords();

// The place that the tensor_name of an eager op stands for. -1: none, it is the
// name.
[[nodiscard]] int PlaceOfWords(const std::string& tensor_name);

}  // namespace hvd

#endif  // HVD_ADAPTER_EAGER_WORDS_H_
