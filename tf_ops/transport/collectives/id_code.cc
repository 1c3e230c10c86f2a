// SPDX-License-Identifier: Apache-2.0
// Writes and reads ids, and trusts no peer's.
#include "transport/collectives/id_code.h"

#include <cstring>
#include <limits>

namespace hvd {
namespace {

constexpr int64_t kMostList4 = int64_t{1} << 31;

template <typename Id>
Id Load(const void* from, int64_t i) {
  Id id;
  std::memcpy(&id,
              static_cast<const std::byte*>(from) + i * int64_t{sizeof(id)},
              sizeof(id));
  return id;
}

template <typename Id>
void Store(int64_t id, std::byte* to, int64_t i) {
  const auto narrow = static_cast<Id>(id);
  std::memcpy(to + i * int64_t{sizeof(narrow)}, &narrow, sizeof(narrow));
}

}  // namespace

IdCode::IdCode(int64_t rows, int64_t table_rows, DataType id_dtype)
    : rows_(rows), table_rows_(table_rows), id_dtype_(id_dtype) {
  if (rows == table_rows) {
    kind_ = Kind::kAll;
    return;
  }
  const bool is_narrow = id_dtype == DataType::kInt32 ||
                         (0 <= table_rows && table_rows <= kMostList4);
  kind_ = is_narrow ? Kind::kList4 : Kind::kList8;
  bytes_ = rows * (is_narrow ? 4 : 8);
  // Any number is valid, so nothing may be added to it.
  const int64_t bit_bytes = table_rows / 8 + (table_rows % 8 != 0);
  if (table_rows >= 0 && bit_bytes < bytes_) {
    kind_ = Kind::kBits;
    bytes_ = bit_bytes;
  }
}

int64_t IdCode::IdAt(const void* ids, int64_t i) const {
  return id_dtype_ == DataType::kInt32 ? Load<int32_t>(ids, i)
                                       : Load<int64_t>(ids, i);
}

void IdCode::Encode(const void* ids, std::byte* out) const {
  if (kind_ == Kind::kAll) return;
  if (kind_ == Kind::kBits) {
    std::memset(out, 0, static_cast<size_t>(bytes_));
  }
  for (int64_t i = 0; i < rows_; ++i) {
    const int64_t id = IdAt(ids, i);
    if (kind_ == Kind::kList4) {
      Store<int32_t>(id, out, i);
    } else if (kind_ == Kind::kList8) {
      Store<int64_t>(id, out, i);
    } else if (0 <= id && id < table_rows_) {
      out[id / 8] |= std::byte{1} << (id % 8);
    }
  }
}

bool IdCode::Decode(const std::byte* in, std::vector<int64_t>* ids) const {
  const size_t before = ids->size();
  ids->reserve(before + static_cast<size_t>(rows_));
  if (kind_ == Kind::kBits) {
    for (int64_t byte = 0; byte < bytes_; ++byte) {
      auto bits = std::to_integer<unsigned>(in[byte]);
      for (; bits != 0; bits &= bits - 1) {
        ids->push_back(byte * 8 + __builtin_ctz(bits));
      }
    }
    return ids->size() == before + static_cast<size_t>(rows_) &&
           ids->back() < table_rows_;
  }
  const int64_t highest =
      table_rows_ < 0 ? std::numeric_limits<int64_t>::max() : table_rows_ - 1;
  int64_t last = -1;
  bool is_sound = true;
  for (int64_t i = 0; i < rows_; ++i) {
    const int64_t id = kind_ == Kind::kAll     ? i
                       : kind_ == Kind::kList4 ? Load<int32_t>(in, i)
                                               : Load<int64_t>(in, i);
    is_sound &= last < id && id <= highest;
    ids->push_back(last = id);
  }
  return is_sound;
}

}  // namespace hvd
