// SPDX-License-Identifier: Apache-2.0
// The timeline's file: its lock, and disks that are slow or hang.
#include "core/timeline_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/batch_times.h"
#include "core/comm_stats.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/trace.h"
#include "harness.h"
#include "temp_directory.h"
#include "trace_text.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

Topology OneRank() {
  Topology topology;
  topology.size = 1;
  topology.host_of = {0};
  return topology;
}

std::shared_ptr<TimelineFile> OpenAt(const std::string& path) {
  auto file = TimelineFile::Open("HVD_TIMELINE", path, OneRank(), 0);
  EXPECT_EQ(file.status().message(), "");
  return file.ok() ? std::move(file.value()) : nullptr;
}

// Some 100 bytes of text for each event.
std::string ChunkOf(int events) {
  CommCounters counters;
  Trace trace(&counters);
  trace.Start(true);
  for (int i = 0; i < events; ++i) trace.Cycle();
  return trace.Take();
}

// Another process, which opens a file when it is asked to. Make it while this
// process has one thread: a lock that another one holds would stay locked in
// the new process, such as those of a sanitizer's memory.
class Opener {
 public:
  explicit Opener(const std::function<Status()>& open) {
    EXPECT_EQ(pipe(asked_), 0);
    EXPECT_EQ(pipe(told_), 0);
    child_ = fork();
    EXPECT_TRUE(child_ >= 0);
    if (child_ != 0) return;
    char byte = 0;
    bool is_well = read(asked_[0], &byte, 1) == 1;
    const std::string message = open().message();
    is_well &= write(told_[1], message.data(), message.size()) ==
               static_cast<ssize_t>(message.size());
    _exit(is_well ? 0 : 1);
  }

  // What it says. To be called once.
  std::string Ask() {
    EXPECT_EQ(write(asked_[1], "!", 1), ssize_t{1});
    close(told_[1]);
    std::string message;
    char bytes[4096];
    for (ssize_t count; (count = read(told_[0], bytes, sizeof(bytes))) > 0;) {
      message.append(bytes, static_cast<size_t>(count));
    }
    for (const int end : {asked_[0], asked_[1], told_[0]}) close(end);
    int status = 1;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
    return message;
  }

 private:
  int asked_[2] = {-1, -1};
  int told_[2] = {-1, -1};
  pid_t child_ = -1;
};

// Kills a process and waits for its end.
void End(pid_t process) {
  EXPECT_TRUE(process > 0);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

TEST(timeline_file_has_one_writer_at_a_time) {
  const TempDirectory directory;
  const std::string path = directory.file("x.json");
  Opener second([&] {
    return TimelineFile::Open("file_path", path, OneRank(), 0).status();
  });
  auto first = OpenAt(path);
  EXPECT_EQ(second.Ask(),
            "file_path='" + path +
                "' cannot be written on rank 0 (another job writes it, or what "
                "it has left behind): name another file, or end that job.");
  // A process that is forked now has the file, and lives on.
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  first->Close();
  const std::string text = TextOf(path);
  EXPECT_EQ(text.substr(text.size() - 5), "}}\n]\n");
  OpenAt(path)->Close();
  End(child);
}

// A child such as one that reads data outlives a rank that is killed.
TEST(timeline_file_is_not_kept_by_the_child_of_a_killed_process) {
  const TempDirectory directory;
  const std::string path = directory.file("x.json");
  int told[2] = {-1, -1};
  ASSERT_EQ(pipe(told), 0);
  const pid_t job = fork();
  if (job == 0) {
    const auto file = OpenAt(path);
    const pid_t child = fork();
    if (child == 0) {
      const pid_t self = getpid();
      (void)!write(told[1], &self, sizeof(self));
    }
    while (true) pause();
  }
  pid_t child = 0;
  EXPECT_EQ(read(told[0], &child, sizeof(child)),
            static_cast<ssize_t>(sizeof(child)));
  const auto open = [&] {
    return TimelineFile::Open("HVD_TIMELINE", path, OneRank(), 0);
  };
  EXPECT_FALSE(open().ok());
  End(job);
  EXPECT_TRUE(open().ok());
  if (child > 0) kill(child, SIGKILL);
  close(told[0]);
  close(told[1]);
}

TEST(output_file_is_emptied_only_by_its_writer) {
  const TempDirectory directory;
  const std::string path = directory.file("x");
  const auto open = [&] {
    return OutputFile::Open("X", path, OutputFile::Links::kFollowed);
  };
  auto first = open();
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first.value().Write("first").ok());
  Opener second([&] { return open().status(); });
  EXPECT_TRUE(second.Ask().find("another job writes it") != std::string::npos);
  EXPECT_EQ(TextOf(path), "first");
  first.value().Close();
  first.value().Close();
  EXPECT_TRUE(first.value().Write("lost").ok());
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(TextOf(path), "");
  // What is no file has as many writers as want it.
  const auto null =
      OutputFile::Open("X", "/dev/null", OutputFile::Links::kRefused);
  EXPECT_TRUE(null.ok());
  EXPECT_TRUE(
      OutputFile::Open("X", "/dev/null", OutputFile::Links::kRefused).ok());
  std::filesystem::create_symlink(path, directory.file("link"));
  const auto of_link = [&](OutputFile::Links links) {
    return OutputFile::Open("X", directory.file("link"), links);
  };
  EXPECT_TRUE(of_link(OutputFile::Links::kFollowed).ok());
  EXPECT_TRUE(of_link(OutputFile::Links::kRefused)
                  .status()
                  .message()
                  .find("(it is a symbolic link)") != std::string::npos);
}

// A disk that takes 64 KB, and then nothing until somebody reads.
class Pipe {
 public:
  explicit Pipe(const std::string& path) {
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    reader_ = open(path.c_str(), O_RDONLY | O_NONBLOCK);
    EXPECT_TRUE(reader_ >= 0);
    fcntl(reader_, F_SETFL, 0);
  }
  ~Pipe() { close(reader_); }

  std::string ReadAll() const {
    std::string text;
    char bytes[4096];
    for (ssize_t count; (count = read(reader_, bytes, sizeof(bytes))) > 0;) {
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int reader_ = -1;
};

// The log's lines while it lives.
struct LoggedLines {
  LoggedLines() {
    SetLogSink([this](LogLevel, const std::string& line) { text += line; });
  }
  ~LoggedLines() { SetLogSink(nullptr); }
  std::string text;
};

TEST(timeline_file_on_a_disk_that_hangs_is_left_alone) {
  const TempDirectory directory;
  const Pipe disk(directory.file("x.json"));
  LoggedLines lines;
  auto file = OpenAt(directory.file("x.json"));
  for (int i = 0; i < 10; ++i) file->Add(0, ChunkOf(1000));
  const Clock::time_point begin = Clock::now();
  file->Close(milliseconds(100));
  EXPECT_TRUE(Clock::now() - begin < milliseconds(20000));
  EXPECT_TRUE(lines.text.find("has no end: its disk takes nothing.") !=
              std::string::npos);
  file->Close();  // at once
  file = nullptr;
  // Its thread goes on with memory of its own.
  const std::string text = disk.ReadAll();
  EXPECT_EQ(text.substr(text.size() - 5), "}}\n]\n");
  EXPECT_TRUE(text.find("hvd_lost_chunks") != std::string::npos);
  EXPECT_TRUE(lines.text.find("too slow") == std::string::npos);
}

TEST(timeline_file_on_a_slow_disk_drops_the_rest) {
  const TempDirectory directory;
  const Pipe disk(directory.file("x.json"));
  LoggedLines lines;
  auto file = OpenAt(directory.file("x.json"));
  for (int i = 0; i < 10; ++i) file->Add(0, ChunkOf(1000));
  std::string text;
  std::thread reader([&] {
    while (!file->is_closing()) std::this_thread::yield();
    text = disk.ReadAll();
  });
  file->Close(milliseconds(0));
  reader.join();
  EXPECT_EQ(text.substr(text.size() - 5), "}}\n]\n");
  EXPECT_TRUE(text.find("hvd_lost_chunks") != std::string::npos);
  EXPECT_TRUE(lines.text.find("chunks of events: its disk is too slow.") !=
              std::string::npos);
}

TEST(timeline_file_takes_as_much_again_as_it_has_written) {
  const TempDirectory directory;
  const std::string path = directory.file("x.json");
  const auto file = OpenAt(path);
  for (size_t times = 1; times <= 2; ++times) {
    file->Add(0, std::string(20 << 20, 'x'));
    file->Add(0, ChunkOf(1));
    // The last chunk is written even if the first is lost.
    while (CountOf(TextOf(path), "CYCLE_START") < times) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  file->Close();
  EXPECT_EQ(CountOf(TextOf(path), "hvd_lost_chunks"), 0u);
}

}  // namespace
}  // namespace hvd
