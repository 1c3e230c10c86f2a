// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the control plane's messages.
#include "core/control/message.h"

#include <limits>
#include <utility>

#include "core/coding.h"

namespace hvd {
namespace {

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

Status ReadStatus(Reader* reader) {
  auto code = reader->Enum<StatusCode>(kStatusCodeCount);
  if (code == StatusCode::kOk) return Status::Ok();
  std::string message = reader->Text();
  const auto kind = reader->Enum<uint8_t>(kCauseKindEnd);
  if (kind == 0) return Status(code, std::move(message));
  Cause cause;
  cause.kind = static_cast<CauseKind>(kind);
  const int64_t rank = reader->Signed();
  if (rank < -1 || rank > std::numeric_limits<int>::max()) reader->Fail();
  cause.rank = static_cast<int>(rank);
  cause.tensor = reader->Text();
  return Status(code, std::move(message), std::move(cause));
}

void Write(Writer* writer, const Key& key) {
  writer->Text(key.name);
  writer->Unsigned(key.instance);
}

Key ReadKey(Reader* reader) {
  Key key;
  key.name = reader->Text();
  key.instance = reader->Unsigned();
  return key;
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
}

Signature ReadSignature(Reader* reader) {
  Signature signature;
  signature.verb = reader->Enum<Verb>(kVerbCount);
  signature.dtype = reader->Enum<DataType>(kDataTypeCount);
  signature.wire_dtype = reader->Enum<DataType>(kDataTypeCount);
  signature.memory = reader->Enum<MemoryKind>(2);
  signature.reduce_op = static_cast<ReduceOp>(reader->Byte());
  if (!IsValid(signature.reduce_op)) reader->Fail();
  signature.prescale = reader->Double();
  signature.postscale = reader->Double();
  signature.root = static_cast<int32_t>(reader->Signed());
  signature.shapes = ReadLists(reader);
  return signature;
}

void Write(Writer* writer, const Submission& submission) {
  writer->Unsigned(submission.cache_id);
  writer->Signed(submission.step);
  if (submission.cache_id != 0) {
    writer->Unsigned(submission.key.instance);
    WriteList(writer, submission.first_dims);
    return;
  }
  Write(writer, submission.key);
  Write(writer, submission.signature);
  Write(writer, submission.error);
}

Submission ReadSubmission(Reader* reader) {
  Submission submission;
  submission.cache_id = reader->Unsigned();
  submission.step = reader->Signed();
  if (submission.cache_id != 0) {
    submission.key.instance = reader->Unsigned();
    submission.first_dims = ReadList(reader);
    return submission;
  }
  submission.key = ReadKey(reader);
  submission.signature = ReadSignature(reader);
  submission.error = ReadStatus(reader);
  return submission;
}

// Each number as its distance from the one before. Tensors that were agreed
// together are submitted together, so their numbers are near.
void Write(Writer* writer, const CachedSubmissions& cached) {
  writer->Signed(cached.step);
  writer->Unsigned(cached.ids.size());
  CacheId last = 0;
  for (CacheId id : cached.ids) {
    writer->Signed(static_cast<int64_t>(id - last));
    last = id;
  }
}

CachedSubmissions ReadCachedSubmissions(Reader* reader) {
  CachedSubmissions cached;
  cached.step = reader->Signed();
  cached.ids.resize(reader->Count());
  CacheId last = 0;
  for (CacheId& id : cached.ids) {
    last += static_cast<CacheId>(reader->Signed());
    id = last;
  }
  return cached;
}

void Write(Writer* writer, const Withdrawal& withdrawal) {
  Write(writer, withdrawal.key);
  writer->Signed(withdrawal.step);
  Write(writer, withdrawal.why);
}

Withdrawal ReadWithdrawal(Reader* reader) {
  Withdrawal withdrawal;
  withdrawal.key = ReadKey(reader);
  withdrawal.step = reader->Signed();
  withdrawal.why = ReadStatus(reader);
  return withdrawal;
}

void Write(Writer* writer, const ScopeEnd& end) {
  writer->Text(end.name_prefix);
  writer->Text(end.text);
}

ScopeEnd ReadScopeEnd(Reader* reader) {
  ScopeEnd end;
  end.name_prefix = reader->Text();
  end.text = reader->Text();
  return end;
}

// Has nothing to say.
void Write(Writer*, const Join&) {}
void Write(Writer*, const Unjoin&) {}

void WriteRanks(Writer* writer, const std::vector<int>& ranks) {
  writer->Unsigned(ranks.size());
  for (int rank : ranks) writer->Unsigned(static_cast<uint64_t>(rank));
}

std::vector<int> ReadRanks(Reader* reader) {
  std::vector<int> ranks(reader->Count());
  for (int& rank : ranks) rank = reader->Int();
  return ranks;
}

void Write(Writer* writer, const SetRequest& request) {
  writer->Byte(request.removes ? 1 : 0);
  WriteRanks(writer, request.ranks);
  writer->Unsigned(static_cast<uint64_t>(request.id));
  Write(writer, request.error);
}

SetRequest ReadSetRequest(Reader* reader) {
  SetRequest request;
  request.removes = reader->Enum<uint8_t>(2) != 0;
  request.ranks = ReadRanks(reader);
  request.id = reader->Int();
  request.error = ReadStatus(reader);
  return request;
}

void Write(Writer* writer, const SetAnswer& answer) {
  writer->Unsigned(static_cast<uint64_t>(answer.serial));
  Write(writer, answer.status);
}

SetAnswer ReadSetAnswer(Reader* reader) {
  SetAnswer answer;
  answer.serial = reader->Int();
  answer.status = ReadStatus(reader);
  return answer;
}

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

// One of a variant's kinds.
template <typename Item>
void WriteItem(Writer* writer, const Item& item) {
  writer->Byte(static_cast<uint8_t>(item.index()));
  std::visit([&](const auto& value) { Write(writer, value); }, item);
}

template <typename Item>
void WriteItems(Writer* writer, const std::vector<Item>& items) {
  writer->Unsigned(items.size());
  for (const Item& item : items) WriteItem(writer, item);
}

void Write(Writer* writer, const Report& report) {
  writer->Unsigned(report.log_seen);
  WriteItems(writer, report.items);
}

Report ReadReport(Reader* reader) {
  Report report;
  report.log_seen = reader->Unsigned();
  size_t count = reader->Count();
  report.items.reserve(count);
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    switch (reader->Byte()) {
      case 0:
        report.items.emplace_back(ReadSubmission(reader));
        break;
      case 1:
        report.items.emplace_back(ReadCachedSubmissions(reader));
        break;
      case 2:
        report.items.emplace_back(ReadWithdrawal(reader));
        break;
      case 3:
        report.items.emplace_back(ReadScopeEnd(reader));
        break;
      case 4:
        report.items.emplace_back(Join{});
        break;
      case 5:
        report.items.emplace_back(Unjoin{});
        break;
      case 6:
        report.items.emplace_back(ReadSetRequest(reader));
        break;
      case 7:
        report.items.emplace_back(ReadSetAnswer(reader));
        break;
      default:
        reader->Fail();
    }
  }
  return report;
}

void Write(Writer* writer, const LogMessage& log) {
  writer->Unsigned(log.first_number);
  WriteItems(writer, log.records);
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

void Write(Writer* writer, const PeerEndMessage& end) {
  writer->Unsigned(static_cast<uint64_t>(end.rank));
  writer->Byte(end.failed ? 1 : 0);
  writer->Text(end.text);
  writer->Unsigned(end.log_seen.size());
  for (const auto& [set_id, number] : end.log_seen) {
    writer->Unsigned(static_cast<uint64_t>(set_id));
    writer->Unsigned(number);
  }
  writer->Signed(end.cause_rank);
  writer->Text(end.cause_text);
  writer->Byte(end.gave_up ? 1 : 0);
}

PeerEndMessage ReadPeerEnd(Reader* reader) {
  PeerEndMessage end;
  end.rank = reader->Int();
  end.failed = reader->Enum<uint8_t>(2) != 0;
  end.text = reader->Text();
  size_t count = reader->Count();
  for (size_t i = 0; i < count; ++i) {
    int set_id = static_cast<int>(reader->Unsigned());
    end.log_seen[set_id] = reader->Unsigned();
  }
  end.cause_rank = static_cast<int>(reader->Signed());
  end.cause_text = reader->Text();
  end.gave_up = reader->Enum<uint8_t>(2) != 0;
  return end;
}

void Write(Writer* writer, const PeerEnds& ends) {
  writer->Byte(ends.pass_on ? 1 : 0);
  writer->Unsigned(ends.ends.size());
  for (const PeerEndMessage& end : ends.ends) Write(writer, end);
}

PeerEnds ReadPeerEnds(Reader* reader) {
  PeerEnds ends;
  ends.pass_on = reader->Enum<uint8_t>(2) != 0;
  ends.ends.resize(reader->Count());
  for (PeerEndMessage& end : ends.ends) end = ReadPeerEnd(reader);
  return ends;
}

void Write(Writer* writer, const Beat& beat) {
  writer->Byte(beat.asks ? 1 : 0);
  writer->Byte(beat.wants_stacks ? 1 : 0);
  writer->Signed(beat.asked_ns);
  writer->Signed(beat.clock_ns);
}

Beat ReadBeat(Reader* reader) {
  Beat beat;
  beat.asks = reader->Enum<uint8_t>(2) != 0;
  beat.wants_stacks = reader->Enum<uint8_t>(2) != 0;
  beat.asked_ns = reader->Signed();
  beat.clock_ns = reader->Signed();
  return beat;
}

void Write(Writer* writer, const TimelineControl& control) {
  writer->Unsigned(control.number);
  writer->Byte(control.is_on ? 1 : 0);
  writer->Byte(control.mark_cycles ? 1 : 0);
}

TimelineControl ReadTimelineControl(Reader* reader) {
  TimelineControl control;
  control.number = reader->Unsigned();
  control.is_on = reader->Enum<uint8_t>(2) != 0;
  control.mark_cycles = reader->Enum<uint8_t>(2) != 0;
  return control;
}

void Write(Writer* writer, const TimelineChunk& chunk) {
  writer->Unsigned(chunk.number);
  writer->Byte(chunk.is_last ? 1 : 0);
  writer->Text(chunk.events);
}

TimelineChunk ReadTimelineChunk(Reader* reader) {
  TimelineChunk chunk;
  chunk.number = reader->Unsigned();
  chunk.is_last = reader->Enum<uint8_t>(2) != 0;
  chunk.events = reader->Text();
  return chunk;
}

}  // namespace

std::string Encode(const Envelope& envelope) {
  Writer writer;
  writer.Byte(static_cast<uint8_t>(envelope.message.index()));
  writer.Unsigned(static_cast<uint64_t>(envelope.set_id));
  std::visit([&](const auto& message) { Write(&writer, message); },
             envelope.message);
  return writer.Take();
}

std::string Encode(const LogRecord& record) {
  Writer writer;
  WriteItem(&writer, record);
  return writer.Take();
}

std::string EncodeLog(int set_id, uint64_t first_number,
                      const std::vector<std::string>& records) {
  Envelope envelope{set_id, LogMessage{first_number, {}}};
  Writer writer;
  writer.Byte(static_cast<uint8_t>(envelope.message.index()));
  writer.Unsigned(static_cast<uint64_t>(envelope.set_id));
  writer.Unsigned(first_number);
  writer.Unsigned(records.size());
  for (const std::string& record : records) writer.Raw(record);
  return writer.Take();
}

Result<Envelope> Decode(const std::string& bytes) {
  Reader reader(bytes);
  Envelope envelope;
  uint8_t kind = reader.Byte();
  envelope.set_id = static_cast<int>(reader.Unsigned());
  switch (kind) {
    case 0:
      envelope.message = ReadReport(&reader);
      break;
    case 1:
      envelope.message = ReadLog(&reader);
      break;
    case 2:
      envelope.message = ReadPeerEnds(&reader);
      break;
    case 3:
      envelope.message = ReadBeat(&reader);
      break;
    case 4:
      envelope.message = ReadTimelineControl(&reader);
      break;
    case 5:
      envelope.message = ReadTimelineChunk(&reader);
      break;
    default:
      reader.Fail();
  }
  if (!reader.ok() || !reader.at_end()) {
    return Internal("a control message of " + std::to_string(bytes.size()) +
                    " bytes does not parse; do all ranks run the same build "
                    "of hvd_tf?");
  }
  return envelope;
}

}  // namespace hvd
