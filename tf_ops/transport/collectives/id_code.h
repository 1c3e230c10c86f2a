// SPDX-License-Identifier: Apache-2.0
// IdCode: how the ids of a rank's rows cross the wire.
#ifndef HVD_TRANSPORT_COLLECTIVES_ID_CODE_H_
#define HVD_TRANSPORT_COLLECTIVES_ID_CODE_H_

#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace hvd {

// The least of these. All ranks know which it is, because they know the numbers
// of rows.
//
// - Nothing, where a rank has all rows of the table.
// - A bit for each row of the table.
// - A list, of 4 bytes an id where all ids of the table fit, else of 8.
class IdCode {
 public:
  // Ids of `rows` rows. They are below `table_rows`, unless that is -1.
  IdCode(int64_t rows, int64_t table_rows, DataType id_dtype);

  int64_t rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }

  // `ids` are of `id_dtype`, ascending, each once.
  void Encode(const void* ids, std::byte* out) const;
  // Writes the ids of all rows. False: the bytes make no sense.
  [[nodiscard]] bool Decode(const std::byte* in, int64_t* out) const;

 private:
  enum class Kind : uint8_t { kAll, kBits, kList4, kList8 };

  template <typename Id>
  void EncodeIds(const void* ids, std::byte* out) const;

  const int64_t rows_;
  const int64_t table_rows_;
  const DataType id_dtype_;
  Kind kind_ = Kind::kList8;
  int64_t bytes_ = 0;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_ID_CODE_H_
