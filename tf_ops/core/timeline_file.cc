// SPDX-License-Identifier: Apache-2.0
// Opens the file, and writes to it on a thread of its own.
#include "core/timeline_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace hvd {
namespace {

constexpr size_t kMostItemBytes = 32 << 20;

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

Result<std::shared_ptr<TimelineFile>> TimelineFile::Open(
    const std::string& name, const std::string& path, const Topology& topology,
    int64_t start_ns) {
  constexpr mode_t kMode = 0644;
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
           kMode);
  if (file < 0) {
    const std::string why =
        errno == ELOOP ? "it is a symbolic link" : std::strerror(errno);
    return InvalidArgument(
        name + "='" + path + "' cannot be written on rank 0 (" + why +
        "): name a file in a directory that exists and may be written to.");
  }
  return std::shared_ptr<TimelineFile>(
      new TimelineFile(file, path, topology, start_ns));
}

TimelineFile::TimelineFile(int file, std::string path, const Topology& topology,
                           int64_t start_ns)
    : path_(std::move(path)),
      file_(file),
      writer_(topology, start_ns),
      thread_([this] { Run(); }) {}

TimelineFile::~TimelineFile() { Close(); }

void TimelineFile::Add(int rank, std::string chunk) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    if (item_bytes_ + chunk.size() > kMostItemBytes) {
      ++lost_[rank];
      return;
    }
    item_bytes_ += chunk.size();
    items_.push_back(Chunk{rank, std::move(chunk)});
  }
  news_.notify_one();
}

void TimelineFile::SetClock(int host, const ClockOffset& clock) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closing_) return;
    items_.push_back(Clock{host, clock});
  }
  news_.notify_one();
}

void TimelineFile::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  news_.notify_one();
  std::lock_guard<std::mutex> lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void TimelineFile::Run() {
  PrepareThread();
  Write(writer_.Head());
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    news_.wait(lock, [this] { return closing_ || !items_.empty(); });
    const std::vector<Item> items = std::exchange(items_, {});
    const std::map<int, uint64_t> lost = std::exchange(lost_, {});
    item_bytes_ = 0;
    const bool ends = closing_;
    lock.unlock();
    for (const Item& item : items) {
      if (const auto* chunk = std::get_if<Chunk>(&item)) {
        Write(writer_.Add(chunk->rank, chunk->bytes));
      } else {
        const Clock& clock = std::get<Clock>(item);
        Write(writer_.SetClock(clock.host, clock.offset));
      }
    }
    for (const auto& [rank, count] : lost) Write(writer_.Lost(rank, count));
    lock.lock();
    if (ends) break;
  }
  Write(writer_.Tail());
  if (file_ >= 0) close(file_);
}

void TimelineFile::Write(const std::string& text) {
  size_t done = 0;
  while (file_ >= 0 && done < text.size()) {
    const ssize_t bytes = write(file_, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      Log(LogLevel::kWarning, "the timeline '" + path_ +
                                  "' ends here: " + std::strerror(errno) + ".");
      close(std::exchange(file_, -1));
      return;
    }
    done += static_cast<size_t>(bytes);
  }
}

}  // namespace hvd
