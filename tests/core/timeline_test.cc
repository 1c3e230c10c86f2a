// SPDX-License-Identifier: Apache-2.0
// Timelines of whole jobs with ranks as threads: one file with every rank.
#include "core/timeline.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "core/trace_events.h"
#include "harness.h"
#include "other_process.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "temp_directory.h"
#include "thread_world.h"

namespace hvd {
namespace {

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

// Lines that have all of these parts.
std::vector<std::string> LinesWith(const std::string& text,
                                   const std::vector<std::string>& parts) {
  std::vector<std::string> found;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool has_all = true;
    for (const std::string& part : parts) {
      has_all &= line.find(part) != std::string::npos;
    }
    if (has_all) found.push_back(line);
  }
  return found;
}

double NumberAfter(const std::string& line, const std::string& key) {
  const size_t at = line.find("\"" + key + "\":");
  EXPECT_TRUE(at != std::string::npos);
  return std::atof(line.c_str() + at + key.size() + 3);
}

void Sum(Runtime* runtime, const std::string& name, size_t count = 10) {
  auto call = Start(runtime, {name}, {Filled(count, 1.0f)});
  EXPECT_EQ(call->Wait().message(), "");
}

// Where the ranks of a job meet, so that none ends a timeline before the others
// are done. Rank 0 waits for them for a second only.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int here_ = 0, round_ = 0;
};

Options WithTimeline(const std::string& path) {
  Options options = Options::Defaults();
  options.timeline = path;
  return options;
}

// What all lines of the tensor `name` of a rank have. Empty: it has none.
std::vector<std::string> RowOf(const std::string& text, int rank,
                               const std::string& name) {
  const std::string pid = "\"pid\":" + std::to_string(rank) + ",";
  const auto row =
      LinesWith(text, {"thread_name", pid, "{\"name\":\"" + name + "\"}"});
  EXPECT_EQ(row.size(), 1u);
  if (row.empty()) return {};
  const int tid = static_cast<int>(NumberAfter(row[0], "tid"));
  return {pid, "\"tid\":" + std::to_string(tid) + ","};
}

// Every rank's `name` was negotiated, and travelled, in the same batch.
void ExpectTensor(const std::string& text, int size, const std::string& name) {
  std::set<double> batches;
  for (int rank = 0; rank < size; ++rank) {
    const auto row = RowOf(text, rank, name);
    ASSERT_EQ(row.size(), 2u);
    for (const char* phase : {"\"NEGOTIATE_ALLREDUCE\"", "\"ALLREDUCE\""}) {
      const auto lines = LinesWith(text, {phase, row[0], row[1]});
      ASSERT_EQ(lines.size(), 1u);
    }
    const auto ended = LinesWith(text, {row[0], row[1], "\"batch\":"});
    ASSERT_TRUE(!ended.empty());
    batches.insert(NumberAfter(ended.back(), "batch"));
  }
  EXPECT_EQ(batches.size(), 1u);
}

TEST(timeline_has_every_rank_and_ends_with_the_job) {
  const TempDirectory directory;
  for (const bool shared : {false, true}) {
    const std::string path = directory.file("all.json");
    const Options options = WithTimeline(path);
    ThreadWorld world(3);
    Meeting meeting(3);
    RunRanks(3, [&](int rank) {
      Runtime runtime(shared ? world.OpenShared(rank, options, 0)
                             : std::unique_ptr<Backend>(world.Open(rank)),
                      options);
      EXPECT_EQ(runtime.Start({}).message(), "");
      Sum(&runtime, "first");
      // The last is as close to the end as can be.
      Sum(&runtime, "last", 100000);
      meeting.Wait();
      runtime.Stop();
    });
    const std::string text = TextOf(path);
    EXPECT_EQ(text.substr(0, 2), "[\n");
    EXPECT_EQ(text.substr(text.size() - 5), "}}\n]\n");
    ExpectTensor(text, 3, "first");
    ExpectTensor(text, 3, "last");
    EXPECT_EQ(CountOf(text, "\"QUEUE\""), 6u);
    EXPECT_EQ(CountOf(text, shared ? "SHM_ALLREDUCE" : "MPI_ALLREDUCE"), 6u);
    EXPECT_EQ(CountOf(text, "CYCLE_START"), 0u);
    EXPECT_EQ(CountOf(text, "process_name"), 3u);
    EXPECT_EQ(CountOf(text, "\"ranks\":[0,1,2]"), 1u);
  }
}

TEST(timeline_rank_0_starts_and_stops_it_for_all) {
  const TempDirectory directory;
  Meeting meeting(2);
  RunJob(2, [&](int rank, Runtime* runtime) {
    Sum(runtime, "before");
    for (const std::string name : {"one", "two"}) {
      const std::string path = directory.file(name);
      EXPECT_EQ(runtime->StartTimeline(path, true).message(), "");
      // A peer may still miss the first.
      Sum(runtime, "may be missed");
      Sum(runtime, name);
      meeting.Wait();
      if (rank == 0) runtime->StopTimeline();
      Sum(runtime, "after " + name);
      if (rank > 0) continue;
      const std::string text = TextOf(path);
      ExpectTensor(text, 2, name);
      EXPECT_EQ(CountOf(text, "\"before\""), 0u);
      EXPECT_TRUE(CountOf(text, "CYCLE_START") >= 2);
      EXPECT_EQ(text.substr(text.size() - 5), "}}\n]\n");
    }
    runtime->StopTimeline();  // does nothing
  });
}

TEST(timeline_of_a_job_is_of_the_traced_ranks_alone) {
  Topology topology;
  topology.size = 66;
  topology.host_of.assign(66, 0);
  for (const auto& [rank, is_traced] : {std::pair(63, true), {64, false}}) {
    topology.rank = rank;
    CommCounters counters;
    Timeline timeline(topology, nullptr, &counters);
    timeline.StartWithJob(false);
    EXPECT_EQ(timeline.trace()->on(), is_traced);
  }
}

// Keeps what is sent.
class KeptMessages : public Channel {
 public:
  void Send(int peer, SharedBytes message) override {
    EXPECT_EQ(peer, to);
    sent.push_back(Decode(*message).value().message);
  }
  bool Receive(int*, std::string*) override { return false; }
  bool Flush() override { return false; }
  Status status() const override { return Status::Ok(); }

  int to = 0;
  std::vector<Message> sent;
};

Topology PairOf(int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = 2;
  topology.host_of = {0, 0};
  return topology;
}

// Rank 0 may be stopped for as long as it takes somebody to find a bug.
TEST(timeline_of_a_rank_that_gets_no_receipts_keeps_its_events) {
  KeptMessages channel;
  CommCounters counters;
  Timeline timeline(PairOf(1), &channel, &counters);
  Timeline::Time now{};
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{7, true, true}, now).ok());
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      timeline.trace()->Cycle();
      now += std::chrono::milliseconds(300);
      timeline.Look(now);
    }
  };
  look(20);
  EXPECT_EQ(channel.sent.size(), 2u);
  // Of the timeline before.
  EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{6}).ok());
  look(5);
  EXPECT_EQ(channel.sent.size(), 2u);
  EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{7}).ok());
  look(5);
  ASSERT_EQ(channel.sent.size(), 3u);
  const auto& third = std::get<TimelineChunk>(channel.sent[2]);
  EXPECT_EQ(DecodeTrace(third.events).value().events.size(), 18u + 5 + 1);
  EXPECT_FALSE(timeline.Handle(1, TimelineReceipt{7}).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(timeline.Handle(0, TimelineReceipt{7}).ok());
  }
  EXPECT_FALSE(timeline.Handle(0, TimelineReceipt{7}).ok());
  // The last one is sent whatever rank 0 does.
  look(3);
  EXPECT_EQ(channel.sent.size(), 5u);
  timeline.Leave(true, now);
  ASSERT_EQ(channel.sent.size(), 6u);
  EXPECT_TRUE(std::get<TimelineChunk>(channel.sent[5]).is_last);
  // Another timeline begins without debts.
  EXPECT_TRUE(timeline.Handle(0, TimelineControl{8, true, true}, now).ok());
  look(3);
  EXPECT_EQ(channel.sent.size(), 8u);
}

TEST(timeline_rank_0_gives_receipts_for_all_chunks_but_the_last) {
  KeptMessages channel;
  channel.to = 1;
  CommCounters counters;
  Timeline timeline(PairOf(0), &channel, &counters);
  // Also for those that come too late.
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, false, ""}).ok());
  ASSERT_EQ(channel.sent.size(), 1u);
  EXPECT_EQ(std::get<TimelineReceipt>(channel.sent[0]).number, 4u);
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, true, ""}).ok());
  EXPECT_FALSE(timeline.Handle(1, TimelineReceipt{0}).ok());
  timeline.PeerEnded(1, false, {});
  EXPECT_TRUE(timeline.Handle(1, TimelineChunk{4, false, ""}).ok());
  EXPECT_EQ(channel.sent.size(), 1u);
}

TEST(timeline_starts_over_in_another_file) {
  const TempDirectory directory;
  Meeting meeting(2);
  RunJob(2, [&](int rank, Runtime* runtime) {
    for (const std::string name : {"one", "two"}) {
      EXPECT_EQ(runtime->StartTimeline(directory.file(name), false).message(),
                "");
      Sum(runtime, "may be missed");
      Sum(runtime, name);
      meeting.Wait();
    }
    if (rank > 0) return;
    ExpectTensor(TextOf(directory.file("one")), 2, "one");
    EXPECT_EQ(CountOf(TextOf(directory.file("one")), "\"two\""), 0u);
  });
  ExpectTensor(TextOf(directory.file("two")), 2, "two");
}

TEST(timeline_that_cannot_be_written_is_refused_on_all_ranks) {
  const TempDirectory directory;
  std::filesystem::create_symlink("elsewhere", directory.file("link"));
  for (const std::string path : {"nowhere/x.json", "link", ""}) {
    ThreadWorld world(2);
    RunRanks(2, [&](int rank) {
      Runtime runtime(world.Open(rank), WithTimeline(directory.file(path)));
      const std::string text = runtime.Start({}).message();
      EXPECT_TRUE(text.find("HVD_TIMELINE='" + directory.file(path) +
                            "' cannot be written on rank 0 (") == 0);
    });
  }
  RunJob(2, [&](int rank, Runtime* runtime) {
    const Status status = runtime->StartTimeline(directory.file("link"), false);
    EXPECT_EQ(status.ok(), rank != 0);
    Sum(runtime, "goes on");
  });
  EXPECT_FALSE(std::filesystem::exists(directory.file("elsewhere")));
}

TEST(timeline_of_another_job_is_left_alone) {
  const TempDirectory directory;
  const std::string path = directory.file("x.json");
  OtherProcess other([&](const OtherProcess::Pause& pause) {
    ThreadWorld world(1);
    RunJob(&world, 1, {}, [&](int, Runtime* runtime) {
      EXPECT_EQ(runtime->StartTimeline(path, false).message(), "");
      pause();
      runtime->StopTimeline();
      EXPECT_EQ(CountOf(TextOf(path), "\"hvd_timeline\""), 1u);
      // The job may write the same file again.
      EXPECT_EQ(runtime->StartTimeline(path, false).message(), "");
    });
  });
  ThreadWorld world(2);
  RunRanks(2, [&](int rank) {
    Runtime runtime(world.Open(rank), WithTimeline(path));
    EXPECT_EQ(runtime.Start({}).message(),
              "HVD_TIMELINE='" + path +
                  "' cannot be written on rank 0 (another job writes it, or "
                  "what it has left behind): name another file, or end that "
                  "job.");
  });
  other.End();
}

TEST(timeline_dynamic_is_no_file) {
  ThreadWorld world(2);
  RunRanks(2, [&](int rank) {
    Runtime runtime(world.Open(rank), WithTimeline("DYNAMIC"));
    EXPECT_EQ(runtime.Start({}).message(), "");
    Sum(&runtime, "x");
  });
  EXPECT_FALSE(std::filesystem::exists("DYNAMIC"));
}

// What a rank notes gets into the file while it waits, and what it waits for.
TEST(timeline_shows_what_hangs) {
  const TempDirectory directory;
  const std::string path = directory.file("hang.json");
  ThreadWorld world(2);
  std::atomic<bool> is_read{false};
  RunRanks(2, [&](int rank) {
    Runtime runtime(world.Open(rank), WithTimeline(path));
    EXPECT_EQ(runtime.Start({}).message(), "");
    Sum(&runtime, "done");
    PendingPtr lonely;
    if (rank == 1) lonely = Start(&runtime, {"lonely"}, {Filled(1, 1.0f)});
    if (rank == 0) {
      // It has begun, and rank 0 has written what it noted itself.
      const std::vector<std::string> begun = {"\"ph\":\"B\"", "\"pid\":1,",
                                              "NEGOTIATE_ALLREDUCE"};
      const auto is_there = [&](const std::string& text) {
        return LinesWith(text, begun).size() == 1 && text.back() == '\n' &&
               !LinesWith(text, {"\"pid\":0,", "\"batch\":"}).empty();
      };
      std::string text;
      const auto limit =
          std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is_there(text) && std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        text = TextOf(path);
      }
      EXPECT_TRUE(is_there(text));
      ExpectTensor(text, 2, "done");
      // There is no end of the file yet.
      EXPECT_TRUE(text.size() > 3 && text.substr(text.size() - 3) == "},\n");
      is_read = true;
    }
    while (!is_read) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    runtime.Stop();
    if (rank == 1) EXPECT_FALSE(lonely->Wait().ok());
  });
  EXPECT_EQ(LinesWith(TextOf(path), {"\"ph\":\"E\"", "\"failed\":true"}).size(),
            1u);
}

// Rank 0 leaves first, and its timeline ends with it. What fails because of
// that is in the file.
TEST(timeline_shows_what_fails_as_rank_0_leaves) {
  const TempDirectory directory;
  const std::string path = directory.file("leaves.json");
  ThreadWorld world(3, {"a", "a", "b"});
  RunRanks(3, [&](int rank) {
    Runtime runtime(world.Open(rank), WithTimeline(path));
    EXPECT_EQ(runtime.Start({}).message(), "");
    Sum(&runtime, "done");
    PendingPtr lonely;
    if (rank > 0) lonely = Start(&runtime, {"lonely"}, {Filled(1, 1.0f)});
    // When it is done, each rank has begun with what it asked for before.
    Sum(&runtime, "after");
    if (rank > 0) EXPECT_FALSE(lonely->Wait().ok());
    runtime.Stop();
  });
  const std::string text = TextOf(path);
  for (int rank : {1, 2}) {
    const auto row = RowOf(text, rank, "lonely");
    ASSERT_EQ(row.size(), 2u);
    EXPECT_EQ(
        LinesWith(text, {"\"NEGOTIATE_ALLREDUCE\"", row[0], row[1]}).size(),
        1u);
    // That line, or that of its end, if the two were not sent together.
    EXPECT_EQ(LinesWith(text, {"\"failed\":true", row[0], row[1]}).size(), 1u);
  }
}

// All ranks are threads here, so the clocks of their hosts differ by nothing.
TEST(timeline_hosts_clocks_are_within_the_stated_error) {
  const TempDirectory directory;
  const std::string path = directory.file("hosts.json");
  const std::vector<std::string> hosts{"a", "b", "b", "c"};
  Options options = WithTimeline(path);
  options.shm_bytes = 65536;
  ThreadWorld world(4, hosts);
  Meeting meeting(4);
  RunRanks(4, [&](int rank) {
    Runtime runtime(world.OpenShared(rank, options, 0), options);
    EXPECT_EQ(runtime.Start({}).message(), "");
    for (int i = 0; i < 20; ++i) Sum(&runtime, "x" + std::to_string(i));
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Sum(&runtime, "last");
    meeting.Wait();
    runtime.Stop();
  });
  const std::string text = TextOf(path);
  ExpectTensor(text, 4, "last");
  ExpectTensor(text, 4, "x7");
  for (int host : {1, 2}) {
    const auto clocks = LinesWith(
        text, {"hvd_clock", "\"host\":" + std::to_string(host) + ","});
    ASSERT_TRUE(!clocks.empty());
    const double error_ns = NumberAfter(clocks.back(), "error_ns");
    EXPECT_TRUE(error_ns > 0 && error_ns < 1e9);
    EXPECT_TRUE(std::abs(NumberAfter(clocks.back(), "offset_ns")) <= error_ns);
  }
}

// Whatever the moment at which a rank fails, its peers' and its own events are
// there.
TEST(timeline_outlives_a_rank_that_fails) {
  const TempDirectory directory;
  const std::string path = directory.file("failed.json");
  ThreadWorld world(3);
  RunRanks(3, [&](int rank) {
    Runtime runtime(world.Open(rank), WithTimeline(path));
    EXPECT_EQ(runtime.Start({}).message(), "");
    Sum(&runtime, "x");
    if (rank == 1) {
      runtime.AnnounceFailure("no more");
    } else {
      auto call = Start(&runtime, {"y"}, {Filled(1, 1.0f)});
      EXPECT_FALSE(call->Wait().ok());
    }
    runtime.Stop();
  });
  ExpectTensor(TextOf(path), 3, "x");
}

}  // namespace
}  // namespace hvd
