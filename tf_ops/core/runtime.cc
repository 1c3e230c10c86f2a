// SPDX-License-Identifier: Apache-2.0
// Checks calls, and hands them to the background thread.
#include "core/runtime.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "core/background_loop.h"
#include "core/batch_times.h"
#include "core/command_queue.h"
#include "core/log.h"
#include "core/quoted.h"
#include "core/stack_requests.h"
#include "core/timeline_file.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnnounceLimit{1};
// How long the background thread may take to end a timeline. It waits for other
// ranks for less.
constexpr std::chrono::seconds kStopLimit{3};
// Ends the call of a command that the queue has not taken.
void Refuse(const Command& command, const Status& status) {
  const Entry& refused = *std::get<EnqueueCommand>(command).entry;
  refused.done(status.Reworded(Quoted(refused.request.key.name) +
                               " cannot start: " + status.message()));
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

Status Runtime::OpenTimeline(const std::string& name, const std::string& path) {
  auto file = TimelineFile::Open(name, path, topology(), SteadyNow_ns());
  if (!file.ok()) return file.status();
  timeline_file_ = std::move(file.value());
  return Status::Ok();
}

Status Runtime::StartTimeline(const std::string& path, bool mark_cycles) {
  if (topology().rank != 0) return Status::Ok();
  // If there can be no new timeline, the one that runs goes on.
  HVD_RETURN_IF_ERROR(TimelineFile::Check("file_path", path));
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

Status Runtime::CheckMember(const ProcessSet& set, const Entry& entry) const {
  if (set.rank >= 0) return Status::Ok();
  return InvalidArgument(
      Quoted(entry.request.key.name) + " was called on rank " +
      std::to_string(topology().rank) + ", which is not in process set " +
      std::to_string(set.id) + ".");
}

void Runtime::Enqueue(const ProcessSet& set, EntryPtr entry) {
  if (const Status member = CheckMember(set, *entry); !member.ok()) {
    entry->done(member);
    return;
  }
  if (loop_->trace().on()) entry->enqueued_ns = SteadyNow_ns();
  Command command = EnqueueCommand{set.serial, std::move(entry)};
  const Status status = queue_->Push(std::move(command));
  if (!status.ok()) Refuse(command, status);
}

void Runtime::Enqueue(const ProcessSet& set, std::vector<EntryPtr> entries) {
  const int64_t now_ns = loop_->trace().on() ? SteadyNow_ns() : 0;
  std::vector<Command> commands;
  commands.reserve(entries.size());
  for (EntryPtr& entry : entries) {
    if (const Status member = CheckMember(set, *entry); !member.ok()) {
      entry->done(member);
      continue;
    }
    entry->enqueued_ns = now_ns;
    commands.push_back(EnqueueCommand{set.serial, std::move(entry)});
  }
  const Status status = queue_->PushAll(&commands);
  for (const Command& command : commands) Refuse(command, status);
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
