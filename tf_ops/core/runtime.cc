// SPDX-License-Identifier: Apache-2.0
// Checks calls, and hands them to the background thread.
#include "core/runtime.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "core/autotune_report.h"
#include "core/background_loop.h"
#include "core/batch_times.h"
#include "core/exception_status.h"
#include "core/log.h"
#include "core/quoted.h"
#include "core/stack_requests.h"
#include "core/tensor_queue.h"
#include "core/timeline_file.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnnounceLimit{1};
// How long the background thread may take to end a timeline. It waits for other
// ranks for less.
constexpr std::chrono::seconds kStopLimit{3};
// Horovod's value for a timeline that start_timeline is going to begin.
constexpr char kDynamicTimeline[] = "DYNAMIC";

// What rank 0 tells of its files when it starts.
constexpr char kError = 'e';
constexpr char kTimeline = 't';
constexpr char kTimelineWithCycles = 'c';

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

Runtime::Runtime(std::unique_ptr<Backend> backend, const Options& options,
                 std::unique_ptr<DeviceLanes> device_lanes)
    : backend_(std::move(backend)),
      device_lanes_(std::move(device_lanes)),
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
  Result<Files> opened = OpenFiles();
  if (!opened.ok()) return opened.status();
  // The thread stands here until all ranks have one.
  std::unique_lock<std::mutex> start(start_mutex_);
  Status own;
  try {
    own = StartThread(sets, &opened.value());
  } catch (const std::exception& error) {
    own = StatusOf(error);
  }
  const Status agreed = AgreeOnStart(own);
  starts_ = agreed.ok();
  start.unlock();
  if (!starts_ && thread_.joinable()) thread_.join();
  return agreed;
}

Status Runtime::StartThread(const std::vector<ProcessSetPtr>& sets,
                            Files* files) {
  queue_ = std::make_unique<TensorQueue>(backend_->doorbell());
  loop_ = std::make_unique<BackgroundLoop>(backend_.get(), device_lanes_.get(),
                                           queue_.get(), &registry_, options_,
                                           stacks_, &counters_);
  HVD_RETURN_IF_ERROR(loop_->Begin(sets));
  // A single rank completes its ops without the wire, so there is nothing to
  // tune.
  if (files->autotune_report != nullptr && topology().size > 1) {
    loop_->Autotune(std::move(files->autotune_report));
  }
  if (files->has_timeline) loop_->StartTimeline(files->marks_cycles);
  if (timeline_file_ != nullptr) {
    // The first command, so that the timeline has all that follows.
    (void)queue_->Push(TimelineCommand{timeline_file_,
                                       options_.timeline_mark_cycles, nullptr});
  }
  thread_ = std::thread([this] {
    {
      std::lock_guard<std::mutex> start(start_mutex_);
      if (!starts_) return;
    }
    loop_->Run();
  });
  return Status::Ok();
}

Status Runtime::AgreeOnStart(const Status& own) {
  // The code, and the message.
  const std::string told =
      own.ok() ? "" : static_cast<char>(own.code()) + own.message();
  const Result<std::vector<std::string>> all = backend_->Exchange(told);
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < topology().size; ++rank) {
    const std::string& error = all.value()[rank];
    if (error.empty()) continue;
    return Status(static_cast<StatusCode>(error[0]),
                  "rank " + std::to_string(rank) + " (" +
                      topology().hosts[rank] +
                      ") cannot start: " + error.substr(1));
  }
  return Status::Ok();
}

Result<Runtime::Files> Runtime::OpenFiles() {
  Files files;
  Status status;
  if (topology().rank == 0 && options_.autotune) {
    auto opened = AutotuneReport::Open(options_.autotune_log);
    status = opened.status();
    if (opened.ok()) files.autotune_report = std::move(opened.value());
  }
  const bool wants_timeline =
      !options_.timeline.empty() && options_.timeline != kDynamicTimeline;
  if (topology().rank == 0 && wants_timeline && status.ok()) {
    status = OpenTimeline("HVD_TIMELINE", options_.timeline);
  }
  // A letter for each thing, or an error behind kError.
  std::string told;
  if (!status.ok()) {
    told = kError + status.message();
  } else if (timeline_file_ != nullptr) {
    told = options_.timeline_mark_cycles ? kTimelineWithCycles : kTimeline;
  }
  Result<std::vector<std::string>> all = backend_->Exchange(told);
  if (!all.ok()) return all.status();
  told = all.value()[0];
  if (told[0] == kError) return InvalidArgument(told.substr(1));
  files.marks_cycles = told[0] == kTimelineWithCycles;
  files.has_timeline = files.marks_cycles || told[0] == kTimeline;
  return files;
}

Status Runtime::OpenTimeline(const std::string& name, const std::string& path) {
  auto file = TimelineFile::Open(name, path, topology(), SteadyNow_ns());
  if (!file.ok()) return file.status();
  timeline_file_ = std::move(file.value());
  return Status::Ok();
}

Status Runtime::StartTimeline(const std::string& path, bool mark_cycles) {
  if (topology().rank != 0) return Status::Ok();
  StopTimeline();
  std::lock_guard<std::mutex> lock(timeline_mutex_);
  HVD_RETURN_IF_ERROR(OpenTimeline("file_path", path));
  return queue_->Push(TimelineCommand{timeline_file_, mark_cycles, nullptr});
}

void Runtime::StopTimeline() {
  std::lock_guard<std::mutex> lock(timeline_mutex_);
  if (timeline_file_ == nullptr) return;
  const auto stopped = std::make_shared<std::promise<void>>();
  std::future<void> future = stopped->get_future();
  Command command =
      TimelineCommand{nullptr, false, [stopped] { stopped->set_value(); }};
  if (queue_->Push(std::move(command)).ok()) future.wait_for(kStopLimit);
  timeline_file_->Close();
  timeline_file_ = nullptr;
}

void Runtime::Stop(bool restarts) {
  std::lock_guard<std::mutex> lock(stop_mutex_);
  stacks_->Close();
  if (!thread_.joinable()) return;
  const char* const text = restarts
                               ? "hvd.elastic.run goes back to the last commit"
                               : "hvd.shutdown() or the end of its program";
  queue_->PushAnyway(EndCommand{false, text, restarts});
  thread_.join();
  std::lock_guard<std::mutex> timeline(timeline_mutex_);
  if (timeline_file_ != nullptr) timeline_file_->Close();
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
  if (!options_.dynamic_process_sets) {
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
      InvalidArgument(Quoted(entry->request.key.name) + " names process set " +
                      std::to_string(process_set_id) +
                      ", which does not exist; give it to hvd.init()."));
}

void Runtime::Enqueue(const ProcessSet& set, EntryPtr entry) {
  if (set.rank < 0) {
    entry->done(InvalidArgument(
        Quoted(entry->request.key.name) + " was called on rank " +
        std::to_string(topology().rank) + ", which is not in process set " +
        std::to_string(set.id) + "."));
    return;
  }
  if (loop_->trace().on()) entry->enqueued_ns = SteadyNow_ns();
  Command command = EnqueueCommand{set.serial, std::move(entry)};
  const Status status = queue_->Push(std::move(command));
  if (status.ok()) return;
  const Entry& refused = *std::get<EnqueueCommand>(command).entry;
  refused.done(status.Reworded(Quoted(refused.request.key.name) +
                               " cannot start: " + status.message()));
}

void Runtime::Join(const ProcessSet& set, JoinCallPtr call) {
  Command command = JoinCommand{set.serial, std::move(call)};
  const Status status = queue_->Push(std::move(command));
  if (status.ok()) return;
  std::get<JoinCommand>(command).call->done(
      status.Reworded("join cannot start: " + status.message()), -1);
}

void Runtime::Cancel(int set_serial, uint64_t ticket, Status why) {
  queue_->PushAnyway(CancelCommand{set_serial, ticket, std::move(why)});
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

int Runtime::restarting_peer() const {
  return loop_ == nullptr ? -1 : loop_->restarting_peer();
}

}  // namespace hvd
