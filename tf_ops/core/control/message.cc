// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the control plane's messages.
#include "core/control/message.h"

#include "core/coding.h"
#include "core/control/words.h"

namespace hvd {
namespace {

// Each type has a Write and a Read, side by side.

void Write(Writer* writer, const PeerEndMessage& end) {
  writer->Unsigned(static_cast<uint64_t>(end.rank));
  writer->Bool(end.failed);
  writer->Text(end.text);
  writer->Unsigned(end.log_seen.size());
  for (const auto& [serial, number] : end.log_seen) {
    writer->Unsigned(static_cast<uint64_t>(serial));
    writer->Unsigned(number);
  }
  writer->Signed(end.cause_rank);
  writer->Text(end.cause_text);
  writer->Bool(end.gave_up);
  writer->Bool(end.restarts);
}

void Read(Reader* reader, PeerEndMessage* end) {
  end->rank = reader->Int();
  end->failed = reader->Bool();
  end->text = reader->Text();
  size_t count = reader->Count();
  for (size_t i = 0; i < count; ++i) {
    int serial = static_cast<int>(reader->Unsigned());
    end->log_seen[serial] = reader->Unsigned();
  }
  end->cause_rank = static_cast<int>(reader->Signed());
  end->cause_text = reader->Text();
  end->gave_up = reader->Bool();
  end->restarts = reader->Bool();
}

void Write(Writer* writer, const PeerEnds& ends) {
  writer->Byte(static_cast<uint8_t>(ends.pass_on));
  writer->Unsigned(ends.round);
  writer->Unsigned(ends.ends.size());
  for (const PeerEndMessage& end : ends.ends) Write(writer, end);
}

void Read(Reader* reader, PeerEnds* ends) {
  ends->pass_on = reader->Enum<PassOn>(kPassOnCount);
  ends->round = reader->Unsigned();
  ends->ends.resize(reader->Count());
  for (PeerEndMessage& end : ends->ends) Read(reader, &end);
}

void Write(Writer* writer, const HostTold& told) {
  writer->Unsigned(told.round);
}

void Read(Reader* reader, HostTold* told) { told->round = reader->Unsigned(); }

void Write(Writer* writer, const Beat& beat) {
  writer->Bool(beat.asks);
  writer->Bool(beat.wants_stacks);
  writer->Signed(beat.asked_ns);
  writer->Signed(beat.clock_ns);
}

void Read(Reader* reader, Beat* beat) {
  beat->asks = reader->Bool();
  beat->wants_stacks = reader->Bool();
  beat->asked_ns = reader->Signed();
  beat->clock_ns = reader->Signed();
}

void Write(Writer* writer, const TimelineControl& control) {
  writer->Unsigned(control.number);
  writer->Bool(control.is_on);
  writer->Bool(control.mark_cycles);
}

void Read(Reader* reader, TimelineControl* control) {
  control->number = reader->Unsigned();
  control->is_on = reader->Bool();
  control->mark_cycles = reader->Bool();
}

void Write(Writer* writer, const TimelineChunk& chunk) {
  writer->Unsigned(chunk.number);
  writer->Bool(chunk.is_last);
  writer->Text(chunk.events);
}

void Read(Reader* reader, TimelineChunk* chunk) {
  chunk->number = reader->Unsigned();
  chunk->is_last = reader->Bool();
  chunk->events = reader->Text();
}

void Write(Writer* writer, const TimelineReceipt& receipt) {
  writer->Unsigned(receipt.number);
}

void Read(Reader* reader, TimelineReceipt* receipt) {
  receipt->number = reader->Unsigned();
}

}  // namespace

std::string Encode(const Envelope& envelope) {
  Writer writer;
  writer.Byte(static_cast<uint8_t>(envelope.message.index()));
  writer.Unsigned(static_cast<uint64_t>(envelope.serial));
  std::visit([&](const auto& message) { Write(&writer, message); },
             envelope.message);
  return writer.Take();
}

std::string Encode(const LogRecord& record) {
  Writer writer;
  WriteRecord(&writer, record);
  return writer.Take();
}

std::string EncodeLog(int serial, uint64_t first_number,
                      const std::vector<std::string>& records) {
  Envelope envelope{serial, LogMessage{first_number, {}}};
  Writer writer;
  writer.Byte(static_cast<uint8_t>(envelope.message.index()));
  writer.Unsigned(static_cast<uint64_t>(envelope.serial));
  writer.Unsigned(first_number);
  writer.Unsigned(records.size());
  for (const std::string& record : records) writer.Raw(record);
  return writer.Take();
}

Result<Envelope> Decode(const std::string& bytes) {
  Reader reader(bytes);
  Envelope envelope;
  const uint8_t kind = reader.Byte();
  envelope.serial = static_cast<int>(reader.Unsigned());
  ReadItem(&reader, kind, &envelope.message,
           [&](auto* message) { Read(&reader, message); });
  if (!reader.ok() || !reader.at_end()) {
    return Internal("a control message of " + std::to_string(bytes.size()) +
                    " bytes does not parse; do all ranks run the same build "
                    "of hvd_tf?");
  }
  return envelope;
}

}  // namespace hvd
