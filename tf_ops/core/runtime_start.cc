// SPDX-License-Identifier: Apache-2.0
// The part of Runtime that starts it, on all ranks or on none.
#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/autotune_report.h"
#include "core/background_loop.h"
#include "core/command_queue.h"
#include "core/exception_status.h"
#include "core/runtime.h"
#include "core/timeline_file.h"

namespace hvd {
namespace {

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

Status Runtime::Start(const std::vector<std::vector<int>>& process_sets) {
  const Topology& topology = backend_->topology();
  std::vector<int> all(topology.size);
  for (int rank = 0; rank < topology.size; ++rank) all[rank] = rank;
  std::vector<ProcessSetPtr> sets = {MakeSet(0, all, topology.rank)};
  if (process_sets.size() >= kProcessSetSlots) {
    return InvalidArgument(
        std::to_string(process_sets.size()) +
        " process sets are more than the " +
        std::to_string(kProcessSetSlots - 1) +
        " that there can be at a time; give fewer to hvd.init().");
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
  queue_ = std::make_unique<CommandQueue>(backend_->doorbell());
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

}  // namespace hvd
