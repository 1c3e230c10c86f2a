// SPDX-License-Identifier: Apache-2.0
// Checks calls, and hands them to the background thread.
#include "core/runtime.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "core/background_loop.h"
#include "core/control/autotune_report.h"
#include "core/log.h"
#include "core/stack_requests.h"
#include "core/tensor_queue.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnnounceLimit{1};
// Messages on the wire have the process set's id, in a few bits.
constexpr size_t kMostProcessSets = 64;

ProcessSet MakeSet(std::vector<int> ranks, int job_rank) {
  ProcessSet set;
  std::sort(ranks.begin(), ranks.end());
  auto found = std::find(ranks.begin(), ranks.end(), job_rank);
  set.rank =
      found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  set.ranks = std::move(ranks);
  return set;
}

Status CheckSet(const std::vector<int>& ranks, int size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return InvalidArgument("A process set has no ranks.");
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return InvalidArgument("A process set names a rank twice.");
  }
  if (sorted.front() < 0 || sorted.back() >= size) {
    return InvalidArgument(
        "A process set names rank " +
        std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
        "; this job has the ranks 0 to " + std::to_string(size - 1) + ".");
  }
  return Status::Ok();
}

}  // namespace

Runtime::Runtime(std::unique_ptr<Backend> backend, const Options& options)
    : backend_(std::move(backend)),
      options_(options),
      stacks_(std::make_shared<StackRequests>(
          std::chrono::duration<double>(options.stall_warning_s))) {}

Runtime::~Runtime() { Stop(); }

Status Runtime::Start(const std::vector<std::vector<int>>& process_sets) {
  const Topology& topology = backend_->topology();
  std::vector<int> all(topology.size);
  for (int rank = 0; rank < topology.size; ++rank) all[rank] = rank;
  sets_.push_back(MakeSet(all, topology.rank));
  if (process_sets.size() >= kMostProcessSets) {
    return InvalidArgument("At most " + std::to_string(kMostProcessSets - 1) +
                           " process sets can be had.");
  }
  for (const std::vector<int>& ranks : process_sets) {
    HVD_RETURN_IF_ERROR(CheckSet(ranks, topology.size));
    sets_.push_back(MakeSet(ranks, topology.rank));
  }
  std::unique_ptr<AutotuneReport> report;
  if (options_.autotune != 0) {
    auto opened = OpenAutotuneReport();
    if (!opened.ok()) return opened.status();
    report = std::move(opened.value());
  }
  queue_ = std::make_unique<TensorQueue>(backend_->doorbell());
  loop_ = std::make_unique<BackgroundLoop>(backend_.get(), queue_.get(),
                                           options_, stacks_);
  for (size_t id = 0; id < sets_.size(); ++id) {
    if (sets_[id].rank < 0) continue;
    HVD_RETURN_IF_ERROR(loop_->AddSet(static_cast<int>(id), sets_[id]));
  }
  // A single rank completes its ops without the wire, so there is nothing to
  // tune.
  if (report != nullptr && topology.size > 1) {
    loop_->Autotune(std::move(report));
  }
  thread_ = std::thread([this] { loop_->Run(); });
  return Status::Ok();
}

Result<std::unique_ptr<AutotuneReport>> Runtime::OpenAutotuneReport() {
  std::unique_ptr<AutotuneReport> report;
  std::string error;
  if (topology().rank == 0) {
    auto opened = AutotuneReport::Open(options_.autotune_log);
    error = opened.status().message();
    if (opened.ok()) report = std::move(opened.value());
  }
  Result<std::vector<std::string>> errors = backend_->Exchange(error);
  if (!errors.ok()) return errors.status();
  if (!errors.value()[0].empty()) return InvalidArgument(errors.value()[0]);
  return report;
}

void Runtime::Stop() {
  std::lock_guard<std::mutex> lock(stop_mutex_);
  stacks_->Close();
  if (!thread_.joinable()) return;
  queue_->PushEnd(
      EndCommand{false, "hvd.shutdown() or the end of its program"});
  thread_.join();
}

int Runtime::process_set_count() const {
  return static_cast<int>(sets_.size());
}

const ProcessSet* Runtime::process_set(int id) const {
  if (id < 0 || id >= process_set_count()) return nullptr;
  return &sets_[id];
}

Status Runtime::CheckMember(int process_set_id, const std::string& name) const {
  const ProcessSet* set = process_set(process_set_id);
  if (set == nullptr) {
    return InvalidArgument("'" + name + "' names process set " +
                           std::to_string(process_set_id) +
                           ", which does not exist; give it to hvd.init().");
  }
  if (set->rank < 0) {
    return InvalidArgument("'" + name + "' was called on rank " +
                           std::to_string(topology().rank) +
                           ", which is not in process set " +
                           std::to_string(process_set_id) + ".");
  }
  return Status::Ok();
}

void Runtime::Enqueue(int process_set_id, EntryPtr entry) {
  Status status = CheckMember(process_set_id, entry->request.key.name);
  if (!status.ok()) {
    entry->done(status);
    return;
  }
  Command command = EnqueueCommand{process_set_id, std::move(entry)};
  status = queue_->Push(std::move(command));
  if (status.ok()) return;
  const Entry& refused = *std::get<EnqueueCommand>(command).entry;
  refused.done(status.Reworded("'" + refused.request.key.name +
                               "' cannot start: " + status.message()));
}

void Runtime::Join(int process_set_id, JoinCallPtr call) {
  Status status = CheckMember(process_set_id, "join");
  if (!status.ok()) return call->done(status, -1);
  Command command = JoinCommand{process_set_id, std::move(call)};
  status = queue_->Push(std::move(command));
  if (status.ok()) return;
  std::get<JoinCommand>(command).call->done(
      status.Reworded("join cannot start: " + status.message()), -1);
}

void Runtime::Cancel(int process_set_id, uint64_t ticket, Status why) {
  // If the queue is closed, what is pending has failed already.
  (void)queue_->Push(CancelCommand{process_set_id, ticket, std::move(why)});
}

void Runtime::AbortStep(int process_set_id, const Key& key, int64_t step,
                        Status why) {
  const ProcessSet* set = process_set(process_set_id);
  if (set == nullptr || set->rank < 0) return;
  (void)queue_->Push(
      AbortStepCommand{process_set_id, key, step, std::move(why)});
}

void Runtime::EndScope(int process_set_id, const std::string& name_prefix,
                       const std::string& text) {
  const ProcessSet* set = process_set(process_set_id);
  if (set == nullptr || set->rank < 0) return;
  (void)queue_->Push(EndScopeCommand{process_set_id, name_prefix, text});
}

void Runtime::AnnounceFailure(const std::string& first_line) {
  std::lock_guard<std::mutex> lock(stop_mutex_);
  if (!thread_.joinable() || announced_) return;
  announced_ = true;
  std::future<void> announced = loop_->failure_announced();
  if (queue_->Push(EndCommand{true, first_line}).ok()) {
    announced.wait_for(kAnnounceLimit);
  }
}

std::optional<PeerEnd> Runtime::first_peer_end() const {
  return loop_ == nullptr ? std::nullopt : loop_->first_peer_end();
}

}  // namespace hvd
