// SPDX-License-Identifier: Apache-2.0
// Pairs beginnings with ends, and gives each a row.
#include "core/timeline_rows.h"

#include <algorithm>

#include "core/timeline_words.h"

namespace hvd {
namespace {

// What a peer sends decides about memory, so it is bounded.
constexpr size_t kMostRows = 10000;
constexpr size_t kMostTracks = 256;
constexpr size_t kMostOpen = 100000;
constexpr int kCycleTid = 0;

}  // namespace

void TimelineRows::Add(const TraceChunk& chunk, int64_t shift_ns,
                       TraceLines* lines) {
  shift_ns_ = shift_ns;
  lines_ = lines;
  for (const TraceEvent& event : chunk.events) {
    if (const auto* submitted = std::get_if<SubmittedEvent>(&event)) {
      last_ns_ = std::max(last_ns_, Shifted(submitted->time_ns));
      Apply(*submitted, chunk);
      continue;
    }
    std::visit(
        [this](const auto& value) {
          using Event = std::decay_t<decltype(value)>;
          last_ns_ = std::max(last_ns_, Shifted(value.time_ns));
          if constexpr (!std::is_same_v<Event, SubmittedEvent>) Apply(value);
        },
        event);
  }
  if (chunk.dropped > 0) {
    lines->Metadata("hvd_dropped_events", rank_, kCycleTid,
                    JsonMember("count", static_cast<int64_t>(chunk.dropped)));
  }
  WriteOpen();
}

TimelineRows::Place TimelineRows::Occupy(const std::string& label,
                                         bool is_batch) {
  std::string shown = label;
  std::string key = (is_batch ? "b" : "t") + label;
  if (rows_.count(key) == 0 && rows_.size() >= kMostRows) {
    // Names without end share a row.
    shown = "other tensors";
    key = "other";
  }
  Row& row = rows_[key];
  if (key == "other") others_ = &row;
  size_t at = 0;
  while (at < row.size() && row[at].is_busy) ++at;
  at = std::min(at, kMostTracks - 1);
  if (at == row.size()) {
    const int tid = is_batch ? next_batch_tid_++ : next_tensor_tid_++;
    row.push_back({tid, false});
    std::string arguments = "\"name\":";
    if (at == 0) {
      arguments += JsonText(shown);
    } else {
      arguments += JsonText(shown + " (" + std::to_string(at + 1) + ")");
      arguments += ",\"tensor\":" + JsonText(shown);
    }
    lines_->Metadata("thread_name", rank_, tid, arguments);
    lines_->Metadata("thread_sort_index", rank_, tid,
                     JsonMember("sort_index", tid));
  }
  row[at].is_busy = true;
  return {&row, at};
}

void TimelineRows::Apply(const SubmittedEvent& event, const TraceChunk& chunk) {
  if (waiting_.size() >= kMostOpen || waiting_.count(event.ticket) > 0) return;
  std::string label = chunk.names[event.name];
  if (event.set_id != 0) {
    label += " [set " + std::to_string(event.set_id) + "]";
  }
  OpenTensor& tensor = waiting_[event.ticket];
  tensor.event = event;
  tensor.arguments = ArgumentsOf(event);
  tensor.place = Occupy(label, false);
  if (tensor.place.first == others_) {
    tensor.arguments += ",\"tensor\":" + JsonText(label);
  }
  tensor.begin_ns = BeginOn(tensor.place, event.enqueued_ns);
}

void TimelineRows::EndPhase(const std::string& name, OpenTensor* tensor,
                            int64_t end_ns, const std::string& arguments) {
  Track& track = TrackAt(tensor->place);
  end_ns = std::max(Shifted(end_ns), tensor->begin_ns);
  if (tensor->is_written) {
    lines_->End(rank_, track.tid, end_ns, arguments);
  } else {
    lines_->Complete(name, rank_, track.tid, tensor->begin_ns, end_ns,
                     tensor->arguments, arguments);
  }
  track.end_ns = tensor->begin_ns = end_ns;
  tensor->is_written = false;
  tensor->arguments.clear();  // only the first phase has them
}

void TimelineRows::Apply(const AgreedEvent& event) {
  const std::pair<int, uint64_t> key{event.serial, event.batch};
  if (batches_.size() >= kMostOpen || batches_.count(key) > 0) return;
  OpenBatch batch;
  batch.tensors.reserve(event.tickets.size());
  std::string arguments, name;
  for (const uint64_t ticket : event.tickets) {
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) continue;  // of before the timeline
    OpenTensor tensor = std::move(found->second);
    waiting_.erase(found);
    // A batch has one verb, unless a peer makes it up.
    if (name.empty() || batch.verb != tensor.event.verb) {
      name = NegotiationOf(tensor.event.verb);
      batch.set_id = tensor.event.set_id;
      arguments = BatchArguments(event.serial, batch.set_id, event.batch);
    }
    batch.verb = tensor.event.verb;
    EndPhase(name, &tensor, event.time_ns, arguments);
    batch.tensors.push_back(std::move(tensor));
  }
  if (batch.tensors.empty()) return;
  batch.place = Occupy(batch.set_id == 0
                           ? "batches"
                           : "batches of set " + std::to_string(batch.set_id),
                       true);
  batch.begin_ns = BeginOn(batch.place, event.time_ns);
  batches_.emplace(key, std::move(batch));
}

void TimelineRows::Apply(const FinishedEvent& event) {
  const auto found = batches_.find({event.serial, event.batch});
  if (found == batches_.end()) return;
  OpenBatch& batch = found->second;
  const std::string name = Upper(Name(batch.verb));
  std::string arguments =
      BatchArguments(event.serial, batch.set_id, event.batch);
  if (!event.is_ok) arguments += ",\"failed\":true";
  for (OpenTensor& tensor : batch.tensors) {
    EndPhase(name, &tensor, event.time_ns, arguments);
    Free(tensor.place);
  }
  WritePhases(batch, event);
  Free(batch.place);
  batches_.erase(found);
}

void TimelineRows::WritePhases(const OpenBatch& batch,
                               const FinishedEvent& event) {
  Track& track = TrackAt(batch.place);
  const std::string name = Upper(Name(batch.verb));
  const BatchTimes& times = event.times;
  int64_t bytes = 0;
  for (const OpenTensor& tensor : batch.tensors) bytes += tensor.event.bytes;
  std::string arguments =
      BatchArguments(event.serial, batch.set_id, event.batch);
  for (const std::string& member :
       {JsonMember("tensors", static_cast<int64_t>(batch.tensors.size())),
        JsonMember("bytes", bytes),
        JsonMember("sent_bytes", times.payload_bytes)}) {
    arguments += "," + member;
  }
  const std::pair<const char*, int64_t> copies[] = {
      {",\"copy_in_us\":", times.copy_in_ns},
      {",\"reduce_us\":", times.reduce_ns},
      {",\"copy_out_us\":", times.copy_out_ns}};
  for (const auto& [member, time_ns] : copies) {
    arguments += member;
    AppendMicros(time_ns, &arguments);
  }
  if (!event.is_ok) arguments += ",\"failed\":true";
  const int64_t end_ns = std::max(Shifted(event.time_ns), batch.begin_ns);
  if (batch.is_written) {
    lines_->End(rank_, track.tid, end_ns, arguments);
  } else {
    lines_->Complete(name, rank_, track.tid, batch.begin_ns, end_ns, arguments);
  }
  track.end_ns = end_ns;
  // Each begins where the one before has ended. What did not come to pass (0)
  // has no time. A batch that failed may have stopped anywhere.
  int64_t at_ns = batch.begin_ns;
  const auto phase = [&](const std::string& phase_name, int64_t until_ns,
                         int64_t otherwise_ns) {
    until_ns = until_ns == 0 ? otherwise_ns : Shifted(until_ns);
    until_ns = std::clamp(until_ns, at_ns, end_ns);
    if (until_ns > at_ns) {
      lines_->Complete(phase_name, rank_, track.tid, at_ns, until_ns, "");
    }
    at_ns = until_ns;
  };
  phase("QUEUE", times.first_in_ns, end_ns);
  phase("MEMCPY_IN_FUSION_BUFFER", times.packed_ns, at_ns);
  phase(PrefixOf(event.carrier) + name, times.last_out_ns, end_ns);
  phase("MEMCPY_OUT_FUSION_BUFFER", 0, end_ns);
}

void TimelineRows::Apply(const FailedEvent& event) {
  const auto found = waiting_.find(event.ticket);
  if (found == waiting_.end()) return;
  OpenTensor& tensor = found->second;
  EndPhase(NegotiationOf(tensor.event.verb), &tensor, event.time_ns,
           "\"failed\":true");
  Free(tensor.place);
  waiting_.erase(found);
}

void TimelineRows::Apply(const CycleEvent& event) {
  lines_->Instant("CYCLE_START", rank_, kCycleTid, Shifted(event.time_ns));
}

void TimelineRows::EndLost(const Place& place, int64_t begin_ns) {
  Track& track = TrackAt(place);
  track.end_ns = std::max(begin_ns, last_ns_);
  track.is_busy = false;
  // Add has written its begin.
  lines_->End(rank_, track.tid, track.end_ns, "\"lost\":true");
}

void TimelineRows::EndOpen(TraceLines* lines) {
  lines_ = lines;
  for (const auto& [ticket, tensor] : waiting_) {
    EndLost(tensor.place, tensor.begin_ns);
  }
  for (const auto& [key, batch] : batches_) {
    for (const OpenTensor& tensor : batch.tensors) {
      EndLost(tensor.place, tensor.begin_ns);
    }
    EndLost(batch.place, batch.begin_ns);
  }
  waiting_.clear();
  batches_.clear();
}

void TimelineRows::WriteOpen() {
  for (auto& [ticket, tensor] : waiting_) {
    if (std::exchange(tensor.is_written, true)) continue;
    lines_->Begin(NegotiationOf(tensor.event.verb), rank_, TidOf(tensor.place),
                  tensor.begin_ns, tensor.arguments);
  }
  for (auto& [key, batch] : batches_) {
    if (std::exchange(batch.is_written, true)) continue;
    const std::string arguments =
        BatchArguments(key.first, batch.set_id, key.second);
    const std::string name = Upper(Name(batch.verb));
    lines_->Begin(name, rank_, TidOf(batch.place), batch.begin_ns, arguments);
    for (OpenTensor& tensor : batch.tensors) {
      tensor.is_written = true;
      lines_->Begin(name, rank_, TidOf(tensor.place), tensor.begin_ns,
                    arguments);
    }
  }
}

}  // namespace hvd
