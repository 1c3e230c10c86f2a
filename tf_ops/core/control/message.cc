// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the control plane's messages.
#include "core/control/message.h"

#include <utility>

#include "core/coding.h"

namespace hvd {
namespace {

// Each type has a Write and a Read, side by side.

void Write(Writer* writer, const PeerEndMessage& end) {
  writer->Unsigned(static_cast<uint64_t>(end.rank));
  writer->Byte(end.failed ? 1 : 0);
  writer->Text(end.text);
  writer->Unsigned(end.log_seen.size());
  for (const auto& [serial, number] : end.log_seen) {
    writer->Unsigned(static_cast<uint64_t>(serial));
    writer->Unsigned(number);
  }
  writer->Signed(end.cause_rank);
  writer->Text(end.cause_text);
  writer->Byte(end.gave_up ? 1 : 0);
  writer->Byte(end.restarts ? 1 : 0);
}

PeerEndMessage ReadPeerEnd(Reader* reader) {
  PeerEndMessage end;
  end.rank = reader->Int();
  end.failed = reader->Enum<uint8_t>(2) != 0;
  end.text = reader->Text();
  size_t count = reader->Count();
  for (size_t i = 0; i < count; ++i) {
    int serial = static_cast<int>(reader->Unsigned());
    end.log_seen[serial] = reader->Unsigned();
  }
  end.cause_rank = static_cast<int>(reader->Signed());
  end.cause_text = reader->Text();
  end.gave_up = reader->Enum<uint8_t>(2) != 0;
  end.restarts = reader->Enum<uint8_t>(2) != 0;
  return end;
}

void Write(Writer* writer, const PeerEnds& ends) {
  writer->Byte(static_cast<uint8_t>(ends.pass_on));
  writer->Unsigned(ends.round);
  writer->Unsigned(ends.ends.size());
  for (const PeerEndMessage& end : ends.ends) Write(writer, end);
}

PeerEnds ReadPeerEnds(Reader* reader) {
  PeerEnds ends;
  ends.pass_on = reader->Enum<PassOn>(3);
  ends.round = reader->Unsigned();
  ends.ends.resize(reader->Count());
  for (PeerEndMessage& end : ends.ends) end = ReadPeerEnd(reader);
  return ends;
}

void Write(Writer* writer, const HostTold& told) {
  writer->Unsigned(told.round);
}

HostTold ReadHostTold(Reader* reader) { return {reader->Unsigned()}; }

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

void Write(Writer* writer, const TimelineReceipt& receipt) {
  writer->Unsigned(receipt.number);
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
  uint8_t kind = reader.Byte();
  envelope.serial = static_cast<int>(reader.Unsigned());
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
    case 6:
      envelope.message = ReadHostReport(&reader);
      break;
    case 7:
      envelope.message = ReadHostTold(&reader);
      break;
    case 8:
      envelope.message = TimelineReceipt{reader.Unsigned()};
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
