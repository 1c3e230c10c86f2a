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

SetChange ReadSetChange(Reader* reader) {
  SetChange change;
  change.step = reader->Enum<SetStep>(kSetStepCount);
  change.serial = reader->Int();
  change.id = reader->Int();
  change.slot = reader->Int();
  change.ranks = ReadRanks(reader);
  change.status = ReadStatus(reader);
  return change;
}

void Write(Writer* writer, const AgreedBatch& batch) {
  writer->Unsigned(batch.tensors.size());
  for (const AgreedTensor& tensor : batch.tensors) {
    writer->Unsigned(tensor.cache_id);
    Write(writer, tensor.key);
    WriteLists(writer, tensor.first_dims);
  }
  WriteRanks(writer, batch.absent);
  if (batch.absent.empty()) return;
  writer->Signed(batch.divisor);
  for (const AgreedTensor& tensor : batch.tensors) {
    writer->Byte(tensor.signature.has_value());
    if (tensor.signature.has_value()) Write(writer, *tensor.signature);
  }
}

AgreedBatch ReadAgreedBatch(Reader* reader) {
  AgreedBatch batch;
  batch.tensors.resize(reader->Count());
  for (AgreedTensor& tensor : batch.tensors) {
    tensor.cache_id = reader->Unsigned();
    tensor.key = ReadKey(reader);
    tensor.first_dims = ReadLists(reader);
  }
  batch.absent = ReadRanks(reader);
  if (batch.absent.empty()) return batch;
  batch.divisor = reader->Signed();
  for (AgreedTensor& tensor : batch.tensors) {
    if (reader->Enum<uint8_t>(2) == 1) tensor.signature = ReadSignature(reader);
  }
  return batch;
}

void Write(Writer* writer, const Joined& joined) {
  writer->Unsigned(static_cast<uint64_t>(joined.last_rank));
}

Joined ReadJoined(Reader* reader) { return {reader->Int()}; }

void Write(Writer* writer, const JoinWithdrawn& withdrawn) {
  writer->Unsigned(static_cast<uint64_t>(withdrawn.rank));
}

JoinWithdrawn ReadJoinWithdrawn(Reader* reader) { return {reader->Int()}; }

void Write(Writer* writer, const FailedKey& failed) {
  writer->Unsigned(failed.cache_id);
  Write(writer, failed.key);
  writer->Unsigned(static_cast<uint64_t>(failed.older));
  writer->Unsigned(failed.ranks.size());
  for (const RankRange& range : failed.ranks) {
    writer->Unsigned(static_cast<uint64_t>(range.first));
    writer->Unsigned(static_cast<uint64_t>(range.last));
  }
}

FailedKey ReadFailedKey(Reader* reader) {
  FailedKey failed;
  failed.cache_id = reader->Unsigned();
  failed.key = ReadKey(reader);
  failed.older = reader->Int();
  failed.ranks.resize(reader->Count());
  for (RankRange& range : failed.ranks) {
    range.first = reader->Int();
    range.last = reader->Int();
  }
  return failed;
}

void Write(Writer* writer, const Failure& failure) {
  Write(writer, failure.status);
  writer->Unsigned(failure.keys.size());
  for (const FailedKey& failed : failure.keys) Write(writer, failed);
}

Failure ReadFailure(Reader* reader) {
  Failure failure;
  failure.status = ReadStatus(reader);
  failure.keys.resize(reader->Count());
  for (FailedKey& failed : failure.keys) failed = ReadFailedKey(reader);
  return failure;
}

void Write(Writer* writer, const Eviction& eviction) {
  writer->Unsigned(eviction.ids.size());
  for (CacheId id : eviction.ids) writer->Unsigned(id);
}

Eviction ReadEviction(Reader* reader) {
  Eviction eviction;
  eviction.ids.resize(reader->Count());
  for (CacheId& id : eviction.ids) {
    id = reader->Unsigned();
  }
  return eviction;
}

void Write(Writer* writer, const Tuning& tuning) {
  writer->Signed(tuning.fusion_bytes);
  writer->Signed(tuning.chunk_bytes);
  writer->Signed(tuning.batches_in_flight);
}

Tuning ReadTuning(Reader* reader) {
  Tuning tuning;
  tuning.fusion_bytes = reader->Signed();
  tuning.chunk_bytes = reader->Signed();
  tuning.batches_in_flight = reader->Signed();
  return tuning;
}

void Write(Writer* writer, const Skipped& skipped) {
  writer->Unsigned(skipped.count);
}

Skipped ReadSkipped(Reader* reader) {
  Skipped skipped;
  skipped.count = reader->Unsigned();
  return skipped;
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

LogMessage ReadLog(Reader* reader) {
  LogMessage log;
  log.first_number = reader->Unsigned();
  size_t count = reader->Count();
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    switch (reader->Byte()) {
      case 0:
        log.records.emplace_back(ReadAgreedBatch(reader));
        break;
      case 1:
        log.records.emplace_back(ReadFailure(reader));
        break;
      case 2:
        log.records.emplace_back(ReadEviction(reader));
        break;
      case 3:
        log.records.emplace_back(ReadTuning(reader));
        break;
      case 4:
        log.records.emplace_back(ReadSkipped(reader));
        break;
      case 5:
        log.records.emplace_back(ReadJoined(reader));
        break;
      case 6:
        log.records.emplace_back(ReadJoinWithdrawn(reader));
        break;
      case 7:
        log.records.emplace_back(ReadSetChange(reader));
        break;
      default:
        reader->Fail();
    }
  }
  return log;
}

}  // namespace hvd
