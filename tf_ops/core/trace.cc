// SPDX-License-Identifier: Apache-2.0
// Counts, and notes events while somebody wants them.
#include "core/trace.h"

#include <algorithm>
#include <utility>

#include "core/control/autotuner.h"
#include "core/verbs/verb_rules.h"

namespace hvd {
namespace {

// What no memory holds counts as the largest number that a chunk can have.
int64_t BytesOf(const Signature& signature) {
  constexpr int64_t kMost = (int64_t{1} << 60) - 1;
  int64_t bytes = 0;
  for (const Shape& shape : signature.shapes) {
    auto of_shape = static_cast<int64_t>(SizeOf(signature.dtype));
    for (const int64_t dim : shape) {
      if (__builtin_mul_overflow(of_shape, dim, &of_shape)) return kMost;
    }
    if (__builtin_add_overflow(bytes, of_shape, &bytes)) return kMost;
  }
  return std::clamp<int64_t>(bytes, 0, kMost);
}

}  // namespace

void Trace::Start(bool mark_cycles) {
  encoder_ = {};
  dropped_ = 0;
  mark_cycles_ = mark_cycles;
  is_closed_ = false;
  waiting_ = {};
  batches_ = {};
  open_ = 0;
  on_.store(true, std::memory_order_relaxed);
}

void Trace::Close() {
  is_closed_ = true;
  mark_cycles_ = false;
}

void Trace::Stop() {
  on_.store(false, std::memory_order_relaxed);
  waiting_ = {};
  batches_ = {};
}

bool Trace::HasRoom() {
  if (encoder_.size_bytes() < kMostBytes && open_ < kMostOpen) return true;
  ++dropped_;
  return false;
}

void Trace::Submitted(int serial, int id, const Entry& entry) {
  if (!on() || is_closed_ || !HasRoom()) return;
  const Request& request = entry.request;
  SubmittedEvent event;
  event.time_ns = SteadyNow_ns();
  // 0: the call was enqueued before the trace began.
  event.enqueued_ns =
      entry.enqueued_ns == 0 ? event.time_ns : entry.enqueued_ns;
  event.serial = serial;
  event.set_id = id;
  event.ticket = entry.ticket;
  event.name = encoder_.NameOf(request.key.name);
  event.instance = request.key.instance;
  event.step = request.step;
  event.verb = request.signature.verb;
  event.dtype = request.signature.dtype;
  event.bytes = BytesOf(request.signature);
  encoder_.Add(event);
  open_ += waiting_.insert(entry.ticket).second ? 1 : 0;
}

void Trace::Failed(const Entry& entry) {
  if (!on() || waiting_.erase(entry.ticket) == 0) return;
  --open_;
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

void Trace::Agreed(int serial, const ReadyBatch& ready) {
  if (autotuner_ != nullptr && serial == 0) TellTuner(ready);
  if (!on() || is_closed_) return;
  AgreedEvent event{SteadyNow_ns(), serial, ready.log_number, {}};
  event.tickets.reserve(ready.tensors.size());
  for (const Outstanding& tensor : ready.tensors) {
    // The tensor may have come before the trace, or have found no room.
    const uint64_t ticket = tensor.entry->ticket;
    if (waiting_.erase(ticket) > 0) event.tickets.push_back(ticket);
  }
  if (event.tickets.empty()) return;
  batches_[{serial, ready.log_number}] = event.tickets.size();
  encoder_.Add(event);
}

std::shared_ptr<BatchTimes> Trace::NewTimes(int serial, uint64_t batch) const {
  if (!on() || batches_.count({serial, batch}) == 0) return nullptr;
  auto times = std::make_shared<BatchTimes>();
  times->started_ns = SteadyNow_ns();
  return times;
}

void Trace::Finished(int serial, const ReadyBatch& ready, const BatchEnd& end) {
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
  if (autotuner_ != nullptr && serial == 0) {
    autotuner_->Travelled(ready.log_number, Autotuner::Clock::now());
  }
  if (!on()) return;
  const auto begun = batches_.find({serial, ready.log_number});
  if (begun == batches_.end()) return;
  open_ -= begun->second;
  batches_.erase(begun);
  FinishedEvent event;
  event.time_ns = SteadyNow_ns();
  event.serial = serial;
  event.batch = ready.log_number;
  event.is_ok = end.status.ok();
  if (end.times != nullptr) event.times = *end.times;
  event.carrier = event.times.among_gpus ? Carrier::kGpus
                  : end.within_host      ? Carrier::kShm
                                         : Carrier::kMpi;
  encoder_.Add(event);
}

void Trace::Cycle() {
  if (!on() || !mark_cycles_ || !HasRoom()) return;
  encoder_.Add(CycleEvent{SteadyNow_ns()});
}

std::string Trace::Take() { return encoder_.Take(std::exchange(dropped_, 0)); }

}  // namespace hvd
