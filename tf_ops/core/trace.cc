// SPDX-License-Identifier: Apache-2.0
// Counts, and notes events while somebody wants them.
#include "core/trace.h"

#include <algorithm>
#include <utility>

#include "core/control/autotuner.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

int64_t BytesOf(const Signature& signature) {
  int64_t count = 0;
  for (const Shape& shape : signature.shapes) count += CountOf(shape);
  return count * static_cast<int64_t>(SizeOf(signature.dtype));
}

}  // namespace

void Trace::Start(bool mark_cycles) {
  encoder_ = {};
  dropped_ = 0;
  mark_cycles_ = mark_cycles;
  is_closed_ = false;
  in_flight_ = 0;
  start_ns_ = SteadyNow_ns();
  on_.store(true, std::memory_order_relaxed);
}

void Trace::Close() {
  is_closed_ = true;
  mark_cycles_ = false;
}

bool Trace::HasRoom() {
  if (encoder_.size_bytes() < kMostBytes) return true;
  ++dropped_;
  return false;
}

void Trace::Submitted(int set, const Entry& entry) {
  if (!on() || is_closed_ || !HasRoom()) return;
  const Request& request = entry.request;
  SubmittedEvent event;
  event.time_ns = SteadyNow_ns();
  // It was enqueued before the trace began.
  event.enqueued_ns =
      entry.enqueued_ns == 0 ? event.time_ns : entry.enqueued_ns;
  event.set = set;
  event.ticket = entry.ticket;
  event.name = encoder_.NameOf(request.key.name);
  event.instance = request.key.instance;
  event.step = request.step;
  event.verb = request.signature.verb;
  event.dtype = request.signature.dtype;
  event.bytes = BytesOf(request.signature);
  encoder_.Add(event);
}

void Trace::Failed(const Entry& entry) {
  if (!on() || !HasRoom()) return;
  encoder_.Add(FailedEvent{SteadyNow_ns(), entry.ticket});
}

void Trace::FeedTo(Autotuner* autotuner, int size) {
  autotuner_ = autotuner;
  tuned_size_ = size;
}

void Trace::TellTuner(const ReadyBatch& agreed) {
  const auto now = Autotuner::Clock::now();
  for (size_t i = 0; i < agreed.tensors.size(); ++i) {
    const Request& request = agreed.tensors[i].entry->request;
    autotuner_->Agreed(
        request.key, agreed.log_number,
        FusionBytes(request.signature, agreed.first_dims[i], tuned_size_), now);
  }
}

void Trace::Agreed(int set, const ReadyBatch& ready) {
  if (autotuner_ != nullptr && set == 0) TellTuner(ready);
  if (!on() || is_closed_) return;
  ++in_flight_;
  if (!HasRoom()) return;
  AgreedEvent event{SteadyNow_ns(), set, ready.log_number, {}};
  event.tickets.reserve(ready.tensors.size());
  for (const Outstanding& tensor : ready.tensors) {
    event.tickets.push_back(tensor.entry->ticket);
  }
  encoder_.Add(event);
}

std::shared_ptr<BatchTimes> Trace::NewTimes() const {
  if (!on() || is_closed_) return nullptr;
  auto times = std::make_shared<BatchTimes>();
  times->started_ns = SteadyNow_ns();
  return times;
}

void Trace::Finished(int set, const ReadyBatch& ready, const BatchEnd& end) {
  if (end.status.ok()) {
    VerbCounters& counters =
        counters_->of(ready.tensors[0].entry->request.signature.verb);
    // Nobody waits for the others, or this rank has joined.
    const auto wanted = std::count_if(
        ready.tensors.begin(), ready.tensors.end(),
        [](const Outstanding& tensor) { return !tensor.cancelled; });
    counters.collectives.Add(static_cast<uint64_t>(wanted));
    counters.batches.Add(1);
    counters.rows.Add(static_cast<uint64_t>(end.rows));
  }
  if (autotuner_ != nullptr && set == 0) {
    autotuner_->Travelled(ready.log_number, Autotuner::Clock::now());
  }
  // It began before the trace, or after its end.
  if (!on() || end.times == nullptr || end.times->started_ns < start_ns_) {
    return;
  }
  in_flight_ = std::max(in_flight_ - 1, 0);
  if (!HasRoom()) return;
  FinishedEvent event;
  event.time_ns = SteadyNow_ns();
  event.set = set;
  event.batch = ready.log_number;
  event.is_ok = end.status.ok();
  event.carrier = end.times->among_cards ? Carrier::kCards
                  : end.within_host      ? Carrier::kShm
                                         : Carrier::kMpi;
  event.times = *end.times;
  encoder_.Add(event);
}

void Trace::Cycle() {
  if (!on() || !mark_cycles_ || !HasRoom()) return;
  encoder_.Add(CycleEvent{SteadyNow_ns()});
}

std::string Trace::Take() { return encoder_.Take(std::exchange(dropped_, 0)); }

}  // namespace hvd
