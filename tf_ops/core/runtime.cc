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

ProcessSetPtr MakeSet(int id, std::vector<int> ranks, int job_rank) {
  auto set = std::make_shared<ProcessSet>();
  std::sort(ranks.begin(), ranks.end());
  auto found = std::find(ranks.begin(), ranks.end(), job_rank);
  set->rank =
      found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  set->ranks = std::move(ranks);
  set->id = set->serial = id;
  return set;
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
  std::vector<ProcessSetPtr> sets = {MakeSet(0, all, topology.rank)};
  if (process_sets.size() >= kProcessSetSlots) {
    return InvalidArgument("At most " + std::to_string(kProcessSetSlots - 1) +
                           " process sets can be had.");
  }
  for (const std::vector<int>& ranks : process_sets) {
    HVD_RETURN_IF_ERROR(CheckSetRanks(ranks, topology.size));
    const int id = static_cast<int>(sets.size());
    sets.push_back(MakeSet(id, ranks, topology.rank));
  }
  std::unique_ptr<AutotuneReport> report;
  if (options_.autotune != 0) {
    auto opened = OpenAutotuneReport();
    if (!opened.ok()) return opened.status();
    report = std::move(opened.value());
  }
  queue_ = std::make_unique<TensorQueue>(backend_->doorbell());
  loop_ = std::make_unique<BackgroundLoop>(backend_.get(), queue_.get(),
                                           &registry_, options_, stacks_);
  HVD_RETURN_IF_ERROR(loop_->Begin(sets));
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

Result<int> Runtime::AddProcessSet(std::vector<int> ranks, Status error) {
  SetRequest request;
  request.error = std::move(error);
  if (request.error.ok()) {
    request.error = CheckSetRanks(ranks, topology().size);
  }
  if (request.error.ok()) {
    request.ranks = std::move(ranks);
    std::sort(request.ranks.begin(), request.ranks.end());
  }
  return ChangeSets(std::move(request));
}

Status Runtime::RemoveProcessSet(int id) {
  SetRequest request;
  request.removes = true;
  request.id = id;
  return ChangeSets(std::move(request)).status();
}

Result<int> Runtime::ChangeSets(SetRequest request) {
  if (options_.dynamic_process_sets == 0) {
    return FailedPrecondition(
        std::string(request.removes ? "remove" : "add") +
        "_process_set needs HVD_DYNAMIC_PROCESS_SETS=1 on every rank, or "
        "hvd.init(process_sets=\"dynamic\").");
  }
  std::lock_guard<std::mutex> lock(change_mutex_);
  const std::string name = NameCall(request);
  const auto call = std::make_shared<SetCall>();
  const auto result = std::make_shared<std::promise<Result<int>>>();
  std::future<Result<int>> waits_for = result->get_future();
  call->request = std::move(request);
  call->done = [result](const Result<int>& done) { result->set_value(done); };
  const Status pushed = queue_->Push(ChangeSetsCommand{call});
  if (!pushed.ok()) {
    return pushed.Reworded(name + " cannot start: " + pushed.message());
  }
  return waits_for.get();
}

void Runtime::Enqueue(int process_set_id, EntryPtr entry) {
  if (const ProcessSetPtr set = process_set(process_set_id)) {
    Enqueue(*set, std::move(entry));
    return;
  }
  entry->done(
      InvalidArgument("'" + entry->request.key.name + "' names process set " +
                      std::to_string(process_set_id) +
                      ", which does not exist; give it to hvd.init()."));
}

void Runtime::Enqueue(const ProcessSet& set, EntryPtr entry) {
  if (set.rank < 0) {
    entry->done(InvalidArgument(
        "'" + entry->request.key.name + "' was called on rank " +
        std::to_string(topology().rank) + ", which is not in process set " +
        std::to_string(set.id) + "."));
    return;
  }
  Command command = EnqueueCommand{set.serial, std::move(entry)};
  const Status status = queue_->Push(std::move(command));
  if (status.ok()) return;
  const Entry& refused = *std::get<EnqueueCommand>(command).entry;
  refused.done(status.Reworded("'" + refused.request.key.name +
                               "' cannot start: " + status.message()));
}

void Runtime::Join(const ProcessSet& set, JoinCallPtr call) {
  Command command = JoinCommand{set.serial, std::move(call)};
  const Status status = queue_->Push(std::move(command));
  if (status.ok()) return;
  std::get<JoinCommand>(command).call->done(
      status.Reworded("join cannot start: " + status.message()), -1);
}

void Runtime::Cancel(int set_serial, uint64_t ticket, Status why) {
  // If the queue is closed, what is pending has failed already.
  (void)queue_->Push(CancelCommand{set_serial, ticket, std::move(why)});
}

void Runtime::AbortStep(const ProcessSet& set, const Key& key, int64_t step,
                        Status why) {
  if (set.rank < 0) return;
  (void)queue_->Push(AbortStepCommand{set.serial, key, step, std::move(why)});
}

void Runtime::EndScope(int process_set_id, const std::string& name_prefix,
                       const std::string& text) {
  const ProcessSetPtr set = process_set(process_set_id);
  if (set == nullptr || set->rank < 0) return;
  (void)queue_->Push(EndScopeCommand{set->serial, name_prefix, text});
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
