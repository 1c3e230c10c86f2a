// SPDX-License-Identifier: Apache-2.0
// Timelines of whole jobs with ranks as threads: one file with every rank.
#include "core/timeline.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"
#include "meeting.h"
#include "other_process.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "runtime_jobs.h"
#include "temp_directory.h"
#include "thread_world.h"
#include "trace_text.h"

namespace hvd {
namespace {

void Sum(Runtime* runtime, const std::string& name, size_t count = 10) {
  auto call = Start(runtime, {name}, {Filled(count, 1.0f)});
  EXPECT_EQ(call->Wait().message(), "");
}

Options WithTimeline(const std::string& path) {
  Options options = Options::Defaults();
  options.timeline = path;
  return options;
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
    // No rank ends the timeline before the others are done: rank 0 waits for
    // them for a second only.
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
    ExpectComplete(text);
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
      ExpectComplete(text);
    }
    runtime->StopTimeline();  // does nothing
  });
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

TEST(timeline_goes_on_where_another_cannot_be_started) {
  const TempDirectory directory;
  Meeting meeting(2);
  RunJob(2, [&](int rank, Runtime* runtime) {
    const std::string path = directory.file("x.json");
    EXPECT_EQ(runtime->StartTimeline(path, false).message(), "");
    Sum(runtime, "may be missed");
    meeting.Wait();
    const Status status =
        runtime->StartTimeline(directory.file("nowhere/x.json"), false);
    EXPECT_EQ(status.ok(), rank != 0);
    meeting.Wait();
    Sum(runtime, "goes on");
    meeting.Wait();
    if (rank > 0) return;
    runtime->StopTimeline();
    ExpectTensor(TextOf(path), 2, "goes on");
    ExpectComplete(TextOf(path));
  });
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
      // It has begun, which "done" may be seen to do as well, and rank 0 has
      // written what it noted itself.
      const auto is_there = [&](const std::string& text) {
        if (CountOf(text, "{\"name\":\"lonely\"}") == 0) return false;
        if (text.back() != '\n') return false;
        const auto row = RowOf(text, 1, "lonely");
        const auto begun = LinesWith(
            text, {"\"ph\":\"B\"", "NEGOTIATE_ALLREDUCE", row[0], row[1]});
        return begun.size() == 1 &&
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
