// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes reports.
#include "core/control/report.h"

#include "core/control/words.h"

namespace hvd {
namespace {

// Each type has a Write and a Read, side by side.

void Write(Writer* writer, const Submission& submission) {
  writer->Unsigned(submission.signature_number);
  writer->Signed(submission.step);
  if (submission.signature_number != 0) {
    writer->Unsigned(submission.key.instance);
    WriteList(writer, submission.first_dims);
    return;
  }
  Write(writer, submission.key);
  Write(writer, submission.signature);
  Write(writer, submission.error);
}

void Read(Reader* reader, Submission* submission) {
  submission->signature_number = reader->Unsigned();
  submission->step = reader->Signed();
  if (submission->signature_number != 0) {
    submission->key.instance = reader->Unsigned();
    submission->first_dims = ReadList(reader);
    return;
  }
  Read(reader, &submission->key);
  Read(reader, &submission->signature);
  Read(reader, &submission->error);
}

void Write(Writer* writer, const CachedSubmissions& cached) {
  writer->Signed(cached.step);
  WriteNumbers(writer, cached.numbers);
  WriteList(writer, cached.first_dims);
}

void Read(Reader* reader, CachedSubmissions* cached) {
  cached->step = reader->Signed();
  cached->numbers = ReadNumbers(reader);
  cached->first_dims = ReadList(reader);
}

void Write(Writer* writer, const Withdrawal& withdrawal) {
  Write(writer, withdrawal.key);
  writer->Signed(withdrawal.step);
  Write(writer, withdrawal.why);
}

void Read(Reader* reader, Withdrawal* withdrawal) {
  Read(reader, &withdrawal->key);
  withdrawal->step = reader->Signed();
  Read(reader, &withdrawal->why);
}

void Write(Writer* writer, const ScopeEnd& end) {
  writer->Text(end.name_prefix);
  writer->Text(end.text);
}

void Read(Reader* reader, ScopeEnd* end) {
  end->name_prefix = reader->Text();
  end->text = reader->Text();
}

// Has nothing to say.
void Write(Writer*, const Join&) {}
void Read(Reader*, Join*) {}
void Write(Writer*, const Unjoin&) {}
void Read(Reader*, Unjoin*) {}

void Write(Writer* writer, const SetRequest& request) {
  writer->Bool(request.removes);
  WriteRanks(writer, request.ranks);
  writer->Unsigned(static_cast<uint64_t>(request.id));
  Write(writer, request.error);
}

void Read(Reader* reader, SetRequest* request) {
  request->removes = reader->Bool();
  request->ranks = ReadRanks(reader);
  request->id = reader->Int();
  Read(reader, &request->error);
}

void Write(Writer* writer, const SetAnswer& answer) {
  writer->Unsigned(static_cast<uint64_t>(answer.serial));
  Write(writer, answer.status);
}

void Read(Reader* reader, SetAnswer* answer) {
  answer->serial = reader->Int();
  Read(reader, &answer->status);
}

void WriteReportItem(Writer* writer, const ReportItem& item) {
  WriteItem(writer, item, [&](const auto& value) { Write(writer, value); });
}

void ReadReportItem(Reader* reader, ReportItem* item) {
  ReadItem(reader, item, [&](auto* value) { Read(reader, value); });
}

void Write(Writer* writer, const HostSubmissions& host) {
  WriteRanks(writer, host.ranks);
  for (int64_t step : host.steps) writer->Signed(step);
  WriteNumbers(writer, host.numbers);
}

void Read(Reader* reader, HostSubmissions* host) {
  host->ranks = ReadRanks(reader);
  host->steps.resize(host->ranks.size());
  for (int64_t& step : host->steps) step = reader->Signed();
  host->numbers = ReadNumbers(reader);
}

void Write(Writer* writer, const HostMemberItem& member) {
  writer->Unsigned(static_cast<uint64_t>(member.rank));
  WriteReportItem(writer, member.item);
}

void Read(Reader* reader, HostMemberItem* member) {
  member->rank = reader->Int();
  ReadReportItem(reader, &member->item);
}

}  // namespace

void Write(Writer* writer, const Report& report) {
  writer->Unsigned(report.log_seen);
  writer->Unsigned(report.items.size());
  for (const ReportItem& item : report.items) WriteReportItem(writer, item);
}

void Read(Reader* reader, Report* report) {
  report->log_seen = reader->Unsigned();
  const size_t count = reader->Count();
  report->items.reserve(count);
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    ReadReportItem(reader, &report->items.emplace_back());
  }
}

void Write(Writer* writer, const HostReport& report) {
  writer->Unsigned(report.log_seen);
  writer->Unsigned(report.items.size());
  for (const HostItem& item : report.items) {
    WriteItem(writer, item, [&](const auto& value) { Write(writer, value); });
  }
}

void Read(Reader* reader, HostReport* report) {
  report->log_seen = reader->Unsigned();
  const size_t count = reader->Count();
  report->items.reserve(count);
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    ReadItem(reader, &report->items.emplace_back(),
             [&](auto* value) { Read(reader, value); });
  }
}

}  // namespace hvd
