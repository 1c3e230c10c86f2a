// SPDX-License-Identifier: Apache-2.0
// Opens the file, and writes to it on a thread of its own.
#include "core/timeline_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <condition_variable>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/log.h"
#include "core/output_file.h"
#include "core/timeline_writer.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostItemBytes = 32 << 20;
// For the end of the file, and for one that is slow to take it.
constexpr std::chrono::milliseconds kEndLimit{2000};

// Signals are for the process's own threads. A training step goes before the
// picture of it.
void PrepareThread() {
  sigset_t all;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    sigdelset(&all, fault);
  }
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
#ifdef __linux__
  constexpr int kNice = 10;
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)),
                    kNice);
  pthread_setname_np(pthread_self(), "hvd_tf_timeline");
#endif
}

}  // namespace

struct TimelineFile::Job {
  struct Chunk {
    int rank;
    std::string bytes;
    uint64_t lost_before;  // chunks of the rank, between the last one and this
  };
  struct HostClock {
    int host;
    ClockOffset offset;
  };
  using Item = std::variant<Chunk, HostClock>;

  Job(OutputFile opened, std::string its_path, const Topology& topology,
      int64_t start_ns)
      : path(std::move(its_path)),
        file(std::move(opened)),
        writer(topology, start_ns) {}

  void Run();
  void Write(Chunk chunk);
  void Write(const HostClock& clock) {
    WriteText(writer.SetClock(clock.host, clock.offset));
  }
  void WriteText(const std::string& text);
  // Nobody waits for the thread. It must touch nothing but this job then.
  bool IsAbandoned();
  bool IsLate();

  const std::string path;
  // The thread alone uses these.
  OutputFile file;
  TimelineWriter writer;
  uint64_t late_chunks = 0;

  std::mutex mutex;
  std::condition_variable news;
  std::condition_variable ended;
  // Guarded by mutex.
  std::vector<Item> items;
  size_t item_bytes = 0;
  std::map<int, uint64_t> lost;  // chunks, by rank, behind those in items
  std::optional<Clock::time_point> limit;  // Close was called
  bool has_ended = false;
  bool is_abandoned = false;
};

Result<std::shared_ptr<TimelineFile>> TimelineFile::Open(
    const std::string& name, const std::string& path, const Topology& topology,
    int64_t start_ns) {
  auto file = OutputFile::Open(name, path, OutputFile::Links::kRefused);
  if (!file.ok()) return file.status();
  return std::shared_ptr<TimelineFile>(new TimelineFile(std::make_shared<Job>(
      std::move(file.value()), path, topology, start_ns)));
}

Status TimelineFile::Check(const std::string& name, const std::string& path) {
  return OutputFile::Check(name, path, OutputFile::Links::kRefused);
}

TimelineFile::TimelineFile(std::shared_ptr<Job> job)
    : job_(std::move(job)), thread_([job = job_] { job->Run(); }) {}

TimelineFile::~TimelineFile() { Close(); }

void TimelineFile::Add(int rank, std::string chunk) {
  {
    std::lock_guard<std::mutex> lock(job_->mutex);
    if (job_->limit.has_value()) return;
    if (job_->item_bytes + chunk.size() > kMostItemBytes) {
      ++job_->lost[rank];
      return;
    }
    uint64_t lost = 0;
    if (!job_->lost.empty()) {
      if (const auto found = job_->lost.find(rank); found != job_->lost.end()) {
        lost = found->second;
        job_->lost.erase(found);
      }
    }
    job_->item_bytes += chunk.size();
    job_->items.push_back(Job::Chunk{rank, std::move(chunk), lost});
  }
  job_->news.notify_one();
}

void TimelineFile::SetClock(int host, const ClockOffset& clock) {
  {
    std::lock_guard<std::mutex> lock(job_->mutex);
    if (job_->limit.has_value()) return;
    job_->items.push_back(Job::HostClock{host, clock});
  }
  job_->news.notify_one();
}

void TimelineFile::Close(std::chrono::milliseconds limit) {
  std::lock_guard<std::mutex> join(join_mutex_);
  if (!thread_.joinable()) return;
  std::unique_lock<std::mutex> lock(job_->mutex);
  job_->limit = Clock::now() + limit;
  job_->news.notify_one();
  const bool has_ended = job_->ended.wait_for(
      lock, limit + kEndLimit, [this] { return job_->has_ended; });
  job_->is_abandoned = !has_ended;
  lock.unlock();
  if (has_ended) {
    thread_.join();
    return;
  }
  thread_.detach();
  Log(LogLevel::kWarning,
      "the timeline '" + job_->path + "' has no end: its disk takes nothing.");
}

bool TimelineFile::is_closing() const {
  std::lock_guard<std::mutex> lock(job_->mutex);
  return job_->limit.has_value();
}

void TimelineFile::Job::Run() {
  PrepareThread();
  WriteText(writer.Head());
  std::unique_lock<std::mutex> lock(mutex);
  for (bool ends = false; !ends;) {
    news.wait(lock, [this] { return limit.has_value() || !items.empty(); });
    std::vector<Item> taken = std::exchange(items, {});
    const std::map<int, uint64_t> missing = std::exchange(lost, {});
    item_bytes = 0;
    ends = limit.has_value();
    lock.unlock();
    for (Item& item : taken) {
      std::visit([this](auto& value) { Write(std::move(value)); }, item);
    }
    for (const auto& [rank, count] : missing) {
      WriteText(writer.Lost(rank, count));
    }
    lock.lock();
  }
  lock.unlock();
  WriteText(writer.Tail());
  file.Close();
  if (late_chunks > 0 && !IsAbandoned()) {
    Log(LogLevel::kWarning, "the timeline '" + path + "' lacks " +
                                std::to_string(late_chunks) +
                                " chunks of events: its disk is too slow.");
  }
  lock.lock();
  has_ended = true;
  ended.notify_all();
}

void TimelineFile::Job::Write(Chunk chunk) {
  if (chunk.lost_before > 0) {
    WriteText(writer.Lost(chunk.rank, chunk.lost_before));
  }
  if (IsLate()) {
    ++late_chunks;
    WriteText(writer.Lost(chunk.rank, 1));
  } else {
    WriteText(writer.Add(chunk.rank, chunk.bytes));
  }
}

void TimelineFile::Job::WriteText(const std::string& text) {
  const Status status = file.Write(text);
  if (status.ok() || IsAbandoned()) return;
  Log(LogLevel::kWarning,
      "the timeline '" + path + "' ends here: " + status.message() + ".");
}

bool TimelineFile::Job::IsAbandoned() {
  std::lock_guard<std::mutex> lock(mutex);
  return is_abandoned;
}

bool TimelineFile::Job::IsLate() {
  std::lock_guard<std::mutex> lock(mutex);
  return limit.has_value() && Clock::now() >= *limit;
}

}  // namespace hvd
