// SPDX-License-Identifier: Apache-2.0
// Writes and reads what both reports and log records are made of.
#ifndef HVD_CORE_CONTROL_WORDS_H_
#define HVD_CORE_CONTROL_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "core/coding.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

// A small number for a signature that the set has agreed on. 0 stands for none.
// No number is used twice, so they must not run out within the life of a job.
using SignatureNumber = uint64_t;

// Each Read takes what its Write has written, into a new value. Bytes that
// cannot be its value make the reader not ok.
void Write(Writer* writer, const Status& status);
void Write(Writer* writer, const Key& key);
void Write(Writer* writer, const Signature& signature);
void WriteList(Writer* writer, const std::vector<int64_t>& list);
void WriteLists(Writer* writer, const std::vector<std::vector<int64_t>>& lists);
void WriteRanks(Writer* writer, const std::vector<int>& ranks);
// Each number as its distance from the one before. Tensors that were agreed
// together are submitted together, so their numbers are near.
void WriteNumbers(Writer* writer, const std::vector<SignatureNumber>& numbers);

void Read(Reader* reader, Status* status);
void Read(Reader* reader, Key* key);
void Read(Reader* reader, Signature* signature);
std::vector<int64_t> ReadList(Reader* reader);
std::vector<std::vector<int64_t>> ReadLists(Reader* reader);
std::vector<int> ReadRanks(Reader* reader);
std::vector<SignatureNumber> ReadNumbers(Reader* reader);

// Which of a variant's kinds it is, and then its value, by `write`.
template <typename Item, typename Function>
void WriteItem(Writer* writer, const Item& item, const Function& write) {
  writer->Byte(static_cast<uint8_t>(item.index()));
  std::visit(write, item);
}

// The value of a kind that has been read, by `read`, which takes a pointer to
// any of the variant's types.
template <typename Item, typename Function, size_t... kKinds>
void ReadItem(Reader* reader, uint8_t kind, Item* item, const Function& read,
              std::index_sequence<kKinds...>) {
  static_assert(sizeof...(kKinds) < 256);
  const bool is_known =
      ((kind == kKinds && (read(&item->template emplace<kKinds>()), true)) ||
       ...);
  if (!is_known) reader->Fail();
}
template <typename Item, typename Function>
void ReadItem(Reader* reader, uint8_t kind, Item* item, const Function& read) {
  ReadItem(reader, kind, item, read,
           std::make_index_sequence<std::variant_size_v<Item>>());
}

// What WriteItem has written.
template <typename Item, typename Function>
void ReadItem(Reader* reader, Item* item, const Function& read) {
  ReadItem(reader, reader->Byte(), item, read);
}

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_WORDS_H_
