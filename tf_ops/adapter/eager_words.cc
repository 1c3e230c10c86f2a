// SPDX-License-Identifier: Apache-2.0
// Keeps words between an eager call and its kernel.
#include "adapter/eager_words.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

// hvd_tf/_internal/eager_words.py writes it, and a place behind it.
constexpr char kInPlace[] = "hvd_tf.words.";

}  // namespace

int64_t EagerWordsTable::Put(EagerWords words) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The lowest, because each place costs a kernel.
  for (int place = 0; place < kPlaces; ++place) {
    Place& at = places_[static_cast<size_t>(place)];
    if (at.number >= 0) continue;
    at.words = std::move(words);
    return at.number = put_++ * kPlaces + place;
  }
  return -1;
}

std::optional<EagerWords> EagerWordsTable::Take(int place) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (place < 0 || place >= kPlaces) return std::nullopt;
  Place& at = places_[static_cast<size_t>(place)];
  if (at.number < 0) return std::nullopt;
  at.number = -1;
  return std::move(at.words);
}

void EagerWordsTable::Drop(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  Place& at = places_[static_cast<size_t>(number % kPlaces)];
  if (at.number == number) at.number = -1;
}

EagerWordsTable& GetEagerWords() {
  // Calls may come while the process ends.
  static auto* const table = new EagerWordsTable;
  return *table;
}

int PlaceOfWords(const std::string& tensor_name) {
  if (tensor_name.rfind(kInPlace, 0) != 0) return -1;
  const char* const digits = tensor_name.c_str() + std::strlen(kInPlace);
  const size_t count = std::strspn(digits, "0123456789");
  // Another name that begins so is a user's own.
  if (count == 0 || count > 2 || digits[count] != '\0') return -1;
  return std::atoi(digits);
}

}  // namespace hvd
