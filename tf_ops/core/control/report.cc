// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes reports.
#include "core/control/report.h"

#include <utility>

#include "core/control/words.h"

namespace hvd {
namespace {

// Each type has a Write and a Read, side by side.

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

void Write(Writer* writer, const CachedSubmissions& cached) {
  writer->Signed(cached.step);
  WriteIds(writer, cached.ids);
}

CachedSubmissions ReadCachedSubmissions(Reader* reader) {
  CachedSubmissions cached;
  cached.step = reader->Signed();
  cached.ids = ReadIds(reader);
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

void WriteReportItem(Writer* writer, const ReportItem& item) {
  WriteItem(writer, item, [&](const auto& value) { Write(writer, value); });
}

ReportItem ReadItem(Reader* reader) {
  switch (reader->Byte()) {
    case 0:
      return ReadSubmission(reader);
    case 1:
      return ReadCachedSubmissions(reader);
    case 2:
      return ReadWithdrawal(reader);
    case 3:
      return ReadScopeEnd(reader);
    case 4:
      return Join{};
    case 5:
      return Unjoin{};
    case 6:
      return ReadSetRequest(reader);
    case 7:
      return ReadSetAnswer(reader);
    default:
      reader->Fail();
      return Join{};
  }
}

void Write(Writer* writer, const HostSubmissions& host) {
  WriteRanks(writer, host.ranks);
  for (int64_t step : host.steps) writer->Signed(step);
  WriteIds(writer, host.ids);
}

HostSubmissions ReadHostSubmissions(Reader* reader) {
  HostSubmissions host;
  host.ranks = ReadRanks(reader);
  host.steps.resize(host.ranks.size());
  for (int64_t& step : host.steps) step = reader->Signed();
  host.ids = ReadIds(reader);
  return host;
}

void Write(Writer* writer, const HostMemberItem& member) {
  writer->Unsigned(static_cast<uint64_t>(member.rank));
  WriteReportItem(writer, member.item);
}

HostMemberItem ReadHostMemberItem(Reader* reader) {
  HostMemberItem member;
  member.rank = reader->Int();
  member.item = ReadItem(reader);
  return member;
}

}  // namespace

void Write(Writer* writer, const Report& report) {
  writer->Unsigned(report.log_seen);
  writer->Unsigned(report.items.size());
  for (const ReportItem& item : report.items) WriteReportItem(writer, item);
}

Report ReadReport(Reader* reader) {
  Report report;
  report.log_seen = reader->Unsigned();
  const size_t count = reader->Count();
  report.items.reserve(count);
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    report.items.push_back(ReadItem(reader));
  }
  return report;
}

void Write(Writer* writer, const HostReport& report) {
  writer->Unsigned(report.log_seen);
  writer->Unsigned(report.items.size());
  for (const HostItem& item : report.items) {
    WriteItem(writer, item, [&](const auto& value) { Write(writer, value); });
  }
}

HostReport ReadHostReport(Reader* reader) {
  HostReport report;
  report.log_seen = reader->Unsigned();
  const size_t count = reader->Count();
  report.items.reserve(count);
  for (size_t i = 0; i < count && reader->ok(); ++i) {
    if (reader->Enum<uint8_t>(2) == 0) {
      report.items.emplace_back(ReadHostSubmissions(reader));
    } else {
      report.items.emplace_back(ReadHostMemberItem(reader));
    }
  }
  return report;
}

}  // namespace hvd
