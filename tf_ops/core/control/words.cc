// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes what both reports and records are made of.
#include "core/control/words.h"

#include <limits>
#include <utility>

#include "core/verbs/verb_rules.h"

namespace hvd {

// Each type has a Write and a Read, side by side.

void Write(Writer* writer, const Status& status) {
  writer->Byte(static_cast<uint8_t>(status.code()));
  if (status.ok()) return;
  writer->Text(status.message());
  const Cause* cause = status.cause();
  writer->Byte(cause == nullptr ? 0 : static_cast<uint8_t>(cause->kind));
  if (cause == nullptr) return;
  writer->Signed(cause->rank);
  writer->Text(cause->tensor);
}

void Read(Reader* reader, Status* status) {
  auto code = reader->Enum<StatusCode>(kStatusCodeCount);
  if (code == StatusCode::kOk) return;
  std::string message = reader->Text();
  const auto kind = reader->Enum<uint8_t>(kCauseKindCount + 1);
  if (kind == 0) {
    *status = Status(code, std::move(message));
    return;
  }
  Cause cause;
  cause.kind = static_cast<CauseKind>(kind);
  const int64_t rank = reader->Signed();
  if (rank < -1 || rank > std::numeric_limits<int>::max()) reader->Fail();
  cause.rank = static_cast<int>(rank);
  cause.tensor = reader->Text();
  *status = Status(code, std::move(message), std::move(cause));
}

void Write(Writer* writer, const Key& key) {
  writer->Text(key.name);
  writer->Unsigned(key.instance);
}

void Read(Reader* reader, Key* key) {
  key->name = reader->Text();
  key->instance = reader->Unsigned();
}

void WriteList(Writer* writer, const std::vector<int64_t>& list) {
  writer->Unsigned(list.size());
  for (int64_t value : list) writer->Signed(value);
}

std::vector<int64_t> ReadList(Reader* reader) {
  std::vector<int64_t> list(reader->Count());
  for (int64_t& value : list) value = reader->Signed();
  return list;
}

void WriteLists(Writer* writer,
                const std::vector<std::vector<int64_t>>& lists) {
  writer->Unsigned(lists.size());
  for (const auto& list : lists) WriteList(writer, list);
}

std::vector<std::vector<int64_t>> ReadLists(Reader* reader) {
  std::vector<std::vector<int64_t>> lists(reader->Count());
  for (auto& list : lists) list = ReadList(reader);
  return lists;
}

void Write(Writer* writer, const Signature& signature) {
  writer->Byte(static_cast<uint8_t>(signature.verb));
  writer->Byte(static_cast<uint8_t>(signature.dtype));
  writer->Byte(static_cast<uint8_t>(signature.wire_dtype));
  writer->Byte(static_cast<uint8_t>(signature.memory));
  writer->Byte(static_cast<uint8_t>(signature.reduce_op));
  writer->Double(signature.prescale);
  writer->Double(signature.postscale);
  writer->Signed(signature.root);
  WriteLists(writer, signature.shapes);
  if (!RulesOf(signature.verb).has_ids) return;
  writer->Byte(static_cast<uint8_t>(signature.id_dtype));
  writer->Byte(static_cast<uint8_t>(signature.sparse_algo));
  WriteList(writer, signature.table_rows);
}

void Read(Reader* reader, Signature* signature) {
  signature->verb = reader->Enum<Verb>(kVerbCount);
  signature->dtype = reader->Enum<DataType>(kDataTypeCount);
  signature->wire_dtype = reader->Enum<DataType>(kDataTypeCount);
  signature->memory = reader->Enum<MemoryKind>(kMemoryKindCount);
  signature->reduce_op = reader->Enum<ReduceOp>(kReduceOpCount);
  signature->prescale = reader->Double();
  signature->postscale = reader->Double();
  signature->root = static_cast<int32_t>(reader->Signed());
  signature->shapes = ReadLists(reader);
  if (!RulesOf(signature->verb).has_ids) return;
  signature->id_dtype = reader->Enum<DataType>(kDataTypeCount);
  signature->sparse_algo = reader->Enum<SparseAlgo>(kSparseAlgoCount);
  signature->table_rows = ReadList(reader);
  const bool are_ids = signature->id_dtype == DataType::kInt32 ||
                       signature->id_dtype == DataType::kInt64;
  if (!are_ids || signature->table_rows.size() != signature->shapes.size()) {
    reader->Fail();
  }
}

void WriteRanks(Writer* writer, const std::vector<int>& ranks) {
  writer->Unsigned(ranks.size());
  for (int rank : ranks) writer->Unsigned(static_cast<uint64_t>(rank));
}

std::vector<int> ReadRanks(Reader* reader) {
  std::vector<int> ranks(reader->Count());
  for (int& rank : ranks) rank = reader->Int();
  return ranks;
}

void WriteNumbers(Writer* writer, const std::vector<SignatureNumber>& numbers) {
  writer->Unsigned(numbers.size());
  SignatureNumber last = 0;
  for (SignatureNumber number : numbers) {
    writer->Signed(static_cast<int64_t>(number - last));
    last = number;
  }
}

std::vector<SignatureNumber> ReadNumbers(Reader* reader) {
  std::vector<SignatureNumber> numbers(reader->Count());
  SignatureNumber last = 0;
  for (SignatureNumber& number : numbers) {
    last += static_cast<SignatureNumber>(reader->Signed());
    number = last;
  }
  return numbers;
}

}  // namespace hvd
