// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes the events of a rank.
#include "core/trace_events.h"

namespace hvd {
namespace {

// The first five are TraceEvent's alternatives.
enum Kind : uint8_t {
  kSubmitted = 0,
  kAgreed = 1,
  kFinished = 2,
  kFailed = 3,
  kCycle = 4,
  kName = 5,
};

// Each as its distance from `base`, but 0, which stands for none.
constexpr int64_t BatchTimes::* kMoments[] = {
    &BatchTimes::started_ns, &BatchTimes::first_in_ns, &BatchTimes::packed_ns,
    &BatchTimes::last_out_ns};
constexpr int64_t BatchTimes::* kAmounts[] = {
    &BatchTimes::copy_in_ns, &BatchTimes::reduce_ns, &BatchTimes::copy_out_ns,
    &BatchTimes::payload_bytes};

// What sums and differences of may not overflow.
bool IsSane(int64_t time_ns) {
  return time_ns >= 0 && time_ns < int64_t{1} << 60;
}

class TraceDecoder {
 public:
  explicit TraceDecoder(const std::string& bytes) : reader_(bytes) {}

  Result<TraceChunk> Decode() {
    TraceChunk chunk;
    chunk.dropped = reader_.Unsigned();
    while (reader_.ok() && !reader_.at_end()) ReadOne(&chunk);
    if (!reader_.ok()) return Internal("events of a rank do not parse.");
    return chunk;
  }

 private:
  void ReadOne(TraceChunk* chunk) {
    switch (reader_.Byte()) {
      case kSubmitted:
        chunk->events.emplace_back(ReadSubmitted(chunk->names.size()));
        break;
      case kAgreed:
        chunk->events.emplace_back(ReadAgreed());
        break;
      case kFinished:
        chunk->events.emplace_back(ReadFinished());
        break;
      case kFailed: {
        FailedEvent event;
        event.time_ns = Time();
        event.ticket = Ticket();
        chunk->events.emplace_back(event);
        break;
      }
      case kCycle:
        chunk->events.emplace_back(CycleEvent{Time()});
        break;
      case kName:
        chunk->names.push_back(reader_.Text());
        break;
      default:
        reader_.Fail();
    }
  }

  int64_t Checked(int64_t time_ns) {
    if (!IsSane(time_ns)) reader_.Fail();
    return IsSane(time_ns) ? time_ns : 0;
  }
  // A difference that is too large to add is no time either.
  int64_t Difference() {
    const int64_t difference = reader_.Signed();
    const bool fits = IsSane(difference < 0 ? -(difference + 1) : difference);
    if (!fits) reader_.Fail();
    return fits ? difference : 0;
  }
  int64_t Time() { return last_ns_ = Checked(last_ns_ + Difference()); }
  uint64_t Ticket() {
    return last_ticket_ += static_cast<uint64_t>(reader_.Signed());
  }

  SubmittedEvent ReadSubmitted(size_t names) {
    SubmittedEvent event;
    event.time_ns = Time();
    event.enqueued_ns = Checked(event.time_ns - Difference());
    event.serial = reader_.Int();
    event.set_id = reader_.Int();
    event.ticket = Ticket();
    event.name = reader_.Unsigned();
    if (event.name >= names) reader_.Fail();
    event.instance = reader_.Unsigned();
    event.step = reader_.Signed();
    event.verb = reader_.Enum<Verb>(kVerbCount);
    event.dtype = reader_.Enum<DataType>(kDataTypeCount);
    event.bytes = Checked(reader_.Signed());
    return event;
  }

  AgreedEvent ReadAgreed() {
    AgreedEvent event;
    event.time_ns = Time();
    event.serial = reader_.Int();
    event.batch = reader_.Unsigned();
    event.tickets.resize(reader_.Count());
    for (uint64_t& ticket : event.tickets) ticket = Ticket();
    return event;
  }

  FinishedEvent ReadFinished() {
    FinishedEvent event;
    event.time_ns = Time();
    event.serial = reader_.Int();
    event.batch = reader_.Unsigned();
    event.is_ok = reader_.Bool();
    event.carrier = reader_.Enum<Carrier>(kCarrierCount);
    for (int64_t BatchTimes::* moment : kMoments) {
      const int64_t before = Difference();
      event.times.*moment =
          before == 0 ? 0 : Checked(event.time_ns - before + 1);
    }
    for (int64_t BatchTimes::* amount : kAmounts) {
      event.times.*amount = Checked(reader_.Signed());
    }
    return event;
  }

  Reader reader_;
  int64_t last_ns_ = 0;
  uint64_t last_ticket_ = 0;
};

}  // namespace

uint64_t TraceEncoder::NameOf(const std::string& name) {
  const auto [found, is_new] = names_.emplace(name, names_.size());
  if (is_new) {
    writer_.Byte(kName);
    writer_.Text(name);
  }
  return found->second;
}

void TraceEncoder::Begin(uint8_t kind, int64_t time_ns) {
  writer_.Byte(kind);
  writer_.Signed(time_ns - last_ns_);
  last_ns_ = time_ns;
}

void TraceEncoder::Ticket(uint64_t ticket) {
  writer_.Signed(static_cast<int64_t>(ticket - last_ticket_));
  last_ticket_ = ticket;
}

void TraceEncoder::Add(const SubmittedEvent& event) {
  Begin(kSubmitted, event.time_ns);
  writer_.Signed(event.time_ns - event.enqueued_ns);
  writer_.Unsigned(static_cast<uint64_t>(event.serial));
  writer_.Unsigned(static_cast<uint64_t>(event.set_id));
  Ticket(event.ticket);
  writer_.Unsigned(event.name);
  writer_.Unsigned(event.instance);
  writer_.Signed(event.step);
  writer_.Byte(static_cast<uint8_t>(event.verb));
  writer_.Byte(static_cast<uint8_t>(event.dtype));
  writer_.Signed(event.bytes);
}

void TraceEncoder::Add(const AgreedEvent& event) {
  Begin(kAgreed, event.time_ns);
  writer_.Unsigned(static_cast<uint64_t>(event.serial));
  writer_.Unsigned(event.batch);
  writer_.Unsigned(event.tickets.size());
  for (uint64_t ticket : event.tickets) Ticket(ticket);
}

void TraceEncoder::Add(const FinishedEvent& event) {
  Begin(kFinished, event.time_ns);
  writer_.Unsigned(static_cast<uint64_t>(event.serial));
  writer_.Unsigned(event.batch);
  writer_.Bool(event.is_ok);
  writer_.Byte(static_cast<uint8_t>(event.carrier));
  for (int64_t BatchTimes::* moment : kMoments) {
    const int64_t time_ns = event.times.*moment;
    writer_.Signed(time_ns == 0 ? 0 : event.time_ns - time_ns + 1);
  }
  for (int64_t BatchTimes::* amount : kAmounts) {
    writer_.Signed(event.times.*amount);
  }
}

void TraceEncoder::Add(const FailedEvent& event) {
  Begin(kFailed, event.time_ns);
  Ticket(event.ticket);
}

void TraceEncoder::Add(const CycleEvent& event) {
  Begin(kCycle, event.time_ns);
}

Result<TraceChunk> DecodeTrace(const std::string& bytes) {
  return TraceDecoder(bytes).Decode();
}

std::string TraceEncoder::Take(uint64_t dropped) {
  Writer whole;
  whole.Unsigned(dropped);
  whole.Raw(writer_.Take());
  writer_ = Writer();
  names_.clear();
  last_ns_ = 0;
  last_ticket_ = 0;
  return whole.Take();
}

}  // namespace hvd
