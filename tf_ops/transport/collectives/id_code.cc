// SPDX-License-Identifier: Apache-2.0
// Writes and reads ids, and trusts no peer's.
#include "transport/collectives/id_code.h"

#include <cstring>
#include <numeric>

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

// The numbers of the bits that are set. False: they are not `count`.
bool ReadBits(const std::byte* in, int64_t bytes, int64_t* out, int64_t count) {
  constexpr int64_t kWordBytes = sizeof(uint64_t);
  const int64_t* const end = out + count;
  const auto read = [&](int64_t byte, int64_t size) {
    uint64_t word = 0;
    std::memcpy(&word, in + byte, static_cast<size_t>(size));
    for (; word != 0; word &= word - 1) {
      if (out == end) return false;
      *out++ = byte * 8 + __builtin_ctzll(word);
    }
    return true;
  };
  int64_t byte = 0;
  // Of a constant size, so that each is one load.
  for (; byte + kWordBytes <= bytes; byte += kWordBytes) {
    if (!read(byte, kWordBytes)) return false;
  }
  return read(byte, bytes - byte) && out == end;
}

// False: they are not ascending ids of the table.
template <typename Id>
bool ReadList(const std::byte* in, int64_t count, int64_t table_rows,
              int64_t* out) {
  int64_t last = -1;
  bool ascends = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = Load<Id>(in, i);
    ascends &= last < id;
    out[i] = last = id;
  }
  return ascends && (table_rows < 0 || last < table_rows);
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

void IdCode::Encode(const void* ids, std::byte* out) const {
  if (id_dtype_ == DataType::kInt32) {
    EncodeIds<int32_t>(ids, out);
  } else {
    EncodeIds<int64_t>(ids, out);
  }
}

template <typename Id>
void IdCode::EncodeIds(const void* ids, std::byte* out) const {
  switch (kind_) {
    case Kind::kAll:
      return;
    case Kind::kBits:
      std::memset(out, 0, static_cast<size_t>(bytes_));
      for (int64_t i = 0; i < rows_; ++i) {
        const int64_t id = Load<Id>(ids, i);
        if (id < 0 || table_rows_ <= id) continue;
        out[id / 8] |= std::byte{1} << (id % 8);
      }
      return;
    case Kind::kList4:
      for (int64_t i = 0; i < rows_; ++i) {
        Store<int32_t>(Load<Id>(ids, i), out, i);
      }
      return;
    case Kind::kList8:
      for (int64_t i = 0; i < rows_; ++i) {
        Store<int64_t>(Load<Id>(ids, i), out, i);
      }
  }
}

bool IdCode::Decode(const std::byte* in, int64_t* out) const {
  switch (kind_) {
    case Kind::kAll:
      std::iota(out, out + rows_, 0);
      return true;
    case Kind::kBits:
      return ReadBits(in, bytes_, out, rows_) && out[rows_ - 1] < table_rows_;
    case Kind::kList4:
      return ReadList<int32_t>(in, rows_, table_rows_, out);
    case Kind::kList8:
      return ReadList<int64_t>(in, rows_, table_rows_, out);
  }
  return false;
}

}  // namespace hvd
