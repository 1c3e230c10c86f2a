// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the records of a log.
#include "core/control/log_record.h"

#include "core/control/words.h"

namespace hvd {
namespace {

// Each type has a Write and a Read, side by side.

void Write(Writer* writer, const SetChange& change) {
  writer->Byte(static_cast<uint8_t>(change.step));
  writer->Unsigned(static_cast<uint64_t>(change.serial));
  writer->Unsigned(static_cast<uint64_t>(change.id));
  writer->Unsigned(static_cast<uint64_t>(change.slot));
  WriteRanks(writer, change.ranks);
  Write(writer, change.status);
}

void Read(Reader* reader, SetChange* change) {
  change->step = reader->Enum<SetStep>(kSetStepCount);
  change->serial = reader->Int();
  change->id = reader->Int();
  change->slot = reader->Int();
  change->ranks = ReadRanks(reader);
  Read(reader, &change->status);
}

void Write(Writer* writer, const AgreedBatch& batch) {
  writer->Unsigned(batch.tensors.size());
  for (const AgreedTensor& tensor : batch.tensors) {
    writer->Unsigned(tensor.signature_number);
    Write(writer, tensor.key);
    WriteLists(writer, tensor.first_dims);
  }
  WriteRanks(writer, batch.absent);
  if (batch.absent.empty()) return;
  writer->Signed(batch.divisor);
  for (const AgreedTensor& tensor : batch.tensors) {
    writer->Bool(tensor.signature.has_value());
    if (tensor.signature.has_value()) Write(writer, *tensor.signature);
  }
}

void Read(Reader* reader, AgreedBatch* batch) {
  batch->tensors.resize(reader->Count());
  for (AgreedTensor& tensor : batch->tensors) {
    tensor.signature_number = reader->Unsigned();
    Read(reader, &tensor.key);
    tensor.first_dims = ReadLists(reader);
  }
  batch->absent = ReadRanks(reader);
  if (batch->absent.empty()) return;
  batch->divisor = reader->Signed();
  for (AgreedTensor& tensor : batch->tensors) {
    if (reader->Bool()) Read(reader, &tensor.signature.emplace());
  }
}

void Write(Writer* writer, const Joined& joined) {
  writer->Unsigned(static_cast<uint64_t>(joined.last_rank));
}

void Read(Reader* reader, Joined* joined) { joined->last_rank = reader->Int(); }

void Write(Writer* writer, const JoinWithdrawn& withdrawn) {
  writer->Unsigned(static_cast<uint64_t>(withdrawn.rank));
}

void Read(Reader* reader, JoinWithdrawn* withdrawn) {
  withdrawn->rank = reader->Int();
}

void Write(Writer* writer, const FailedKey& failed) {
  writer->Unsigned(failed.signature_number);
  Write(writer, failed.key);
  writer->Unsigned(static_cast<uint64_t>(failed.older));
  writer->Unsigned(failed.ranks.size());
  for (const RankRange& range : failed.ranks) {
    writer->Unsigned(static_cast<uint64_t>(range.first));
    writer->Unsigned(static_cast<uint64_t>(range.last));
  }
}

void Read(Reader* reader, FailedKey* failed) {
  failed->signature_number = reader->Unsigned();
  Read(reader, &failed->key);
  failed->older = reader->Int();
  failed->ranks.resize(reader->Count());
  for (RankRange& range : failed->ranks) {
    range.first = reader->Int();
    range.last = reader->Int();
  }
}

void Write(Writer* writer, const Failure& failure) {
  Write(writer, failure.status);
  writer->Unsigned(failure.keys.size());
  for (const FailedKey& failed : failure.keys) Write(writer, failed);
}

void Read(Reader* reader, Failure* failure) {
  Read(reader, &failure->status);
  failure->keys.resize(reader->Count());
  for (FailedKey& failed : failure->keys) Read(reader, &failed);
}

void Write(Writer* writer, const Eviction& eviction) {
  writer->Unsigned(eviction.numbers.size());
  for (SignatureNumber number : eviction.numbers) writer->Unsigned(number);
}

void Read(Reader* reader, Eviction* eviction) {
  eviction->numbers.resize(reader->Count());
  for (SignatureNumber& number : eviction->numbers) {
    number = reader->Unsigned();
  }
}

void Write(Writer* writer, const Tuning& tuning) {
  writer->Signed(tuning.fusion_bytes);
  writer->Signed(tuning.chunk_bytes);
  writer->Signed(tuning.batches_in_flight);
}

void Read(Reader* reader, Tuning* tuning) {
  tuning->fusion_bytes = reader->Signed();
  tuning->chunk_bytes = reader->Signed();
  tuning->batches_in_flight = reader->Signed();
}

void Write(Writer* writer, const Skipped& skipped) {
  writer->Unsigned(skipped.count);
}

void Read(Reader* reader, Skipped* skipped) {
  skipped->count = reader->Unsigned();
}

}  // namespace

void WriteRecord(Writer* writer, const LogRecord& record) {
  WriteItem(writer, record, [&](const auto& value) { Write(writer, value); });
}

void Write(Writer* writer, const LogMessage& log) {
  writer->Unsigned(log.first_number);
  writer->Unsigned(log.records.size());
  for (const LogRecord& record : log.records) WriteRecord(writer, record);
}

void Read(Reader* reader, LogMessage* log) {
  log->first_number = reader->Unsigned();
  size_t count = reader->Count();
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    ReadItem(reader, &log->records.emplace_back(),
             [&](auto* value) { Read(reader, value); });
  }
}

}  // namespace hvd
