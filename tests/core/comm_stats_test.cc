// SPDX-License-Identifier: Apache-2.0
// What hvd.comm_stats() counts equals formulas, to the byte.
#include "core/comm_stats.h"

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "core/control/message.h"
#include "core/runtime.h"
#include "harness.h"
#include "meeting.h"
#include "run_ranks.h"
#include "runtime_calls.h"
#include "thread_world.h"

namespace hvd {
namespace {

constexpr uint64_t kHeaderBytes = 16;
constexpr uint64_t kChunkBytes = 4096;

// Without heartbeats, which depend on the time.
Options Quiet() {
  Options options = Options::Defaults();
  options.stall_warning_s = 0;
  return options;
}

// A job on one host, by mailboxes or by shared memory, whose ranks do `body`
// and then check their counters.
void CountJob(int size, const std::function<void(Runtime*)>& body,
              const std::function<void(int, const CommCounters&)>& check) {
  for (const bool shared : {false, true}) {
    ThreadWorld world(size, {}, kChunkBytes);
    Options options = Quiet();
    options.shm_chunk_bytes = kChunkBytes;
    options.shm_bytes = 1 << 20;  // containers have 64 MB for all ranks
    Meeting checked(size);
    RunRanks(size, [&](int rank) {
      Runtime runtime(shared ? world.OpenShared(rank, options, 0)
                             : std::unique_ptr<Backend>(world.Open(rank)),
                      options);
      EXPECT_EQ(runtime.Start({}).message(), "");
      body(&runtime);
      check(rank, runtime.counters());
      // A rank that ends sends its peers a message.
      checked.Wait();
      runtime.Stop();
    });
  }
}

void ExpectSent(const VerbCounters& counters, uint64_t blocks,
                uint64_t payload_bytes) {
  EXPECT_EQ(counters.blocks.value(), blocks);
  EXPECT_EQ(counters.payload_bytes.value(), payload_bytes);
  EXPECT_EQ(counters.header_bytes.value(), blocks * kHeaderBytes);
}

TEST(comm_stats_of_a_small_allreduce) {
  for (uint64_t size : {2, 3, 8}) {
    constexpr uint64_t kCount = 1000;  // 4000 bytes: each rank sends all to all
    CountJob(
        static_cast<int>(size),
        [](Runtime* runtime) {
          auto call = Start(runtime, {"x"}, {Filled(kCount, 1.0f)});
          EXPECT_EQ(call->Wait().message(), "");
        },
        [size](int, const CommCounters& counters) {
          const VerbCounters& allreduce = counters.verbs[0];
          EXPECT_EQ(allreduce.collectives.value(), 1u);
          EXPECT_EQ(allreduce.batches.value(), 1u);
          ExpectSent(allreduce, size - 1, (size - 1) * kCount * sizeof(float));
        });
  }
}

TEST(comm_stats_of_a_large_allreduce) {
  for (uint64_t size : {2, 3, 4}) {
    constexpr uint64_t kChunks = 5;
    constexpr uint64_t kCount = kChunks * kChunkBytes / sizeof(float);
    CountJob(
        static_cast<int>(size),
        [](Runtime* runtime) {
          Floats values(kCount, 1.0f);
          auto call = Start(runtime, {"x"}, {values});
          EXPECT_EQ(call->Wait().message(), "");
        },
        [size](int, const CommCounters& counters) {
          // Chunks of kOneRoundBytes go to all as they are.
          ExpectSent(counters.verbs[0], kChunks * (size - 1),
                     kChunks * kChunkBytes * (size - 1));
        });
  }
}

// By shards: a rank sends each peer the peer's shard, and each its own, summed.
TEST(comm_stats_of_an_allreduce_by_shards) {
  for (uint64_t size : {2, 4}) {
    constexpr uint64_t kBytes = 64 << 10;
    ThreadWorld world(static_cast<int>(size), {}, kBytes);
    RunRanks(static_cast<int>(size), [&](int rank) {
      Runtime runtime(world.Open(rank), Quiet());
      EXPECT_EQ(runtime.Start({}).message(), "");
      for (uint64_t n = 1; n <= 3; ++n) {
        auto call =
            Start(&runtime, {"x"}, {Filled(kBytes / sizeof(float), 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
        const uint64_t shard = kBytes / size;
        ExpectSent(runtime.counters().verbs[0], n * 2 * (size - 1),
                   n * 2 * (size - 1) * shard);
      }
      runtime.Stop();
    });
  }
}

TEST(comm_stats_of_rows) {
  constexpr int kSize = 3;
  CountJob(
      kSize,
      [](Runtime* runtime) {
        const auto rows = static_cast<size_t>(10 + runtime->topology().rank);
        auto call = Start(runtime, {"rows", Verb::kAllgather},
                          {Filled(rows, 1.0f), Filled(2, 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
      },
      [](int rank, const CommCounters& counters) {
        const VerbCounters& allgather = counters.verbs[1];
        EXPECT_EQ(allgather.collectives.value(), 1u);
        EXPECT_EQ(allgather.rows.value(), 10u + 11 + 12 + 3 * 2);
        ExpectSent(allgather, kSize - 1,
                   (kSize - 1) * (10u + rank + 2) * sizeof(float));
      });
}

void Join(Runtime* runtime) {
  const auto call = std::make_shared<JoinCall>();
  std::promise<std::string> told;
  call->ticket = runtime->NewTicket();
  call->done = [&told](const Status& status, int) {
    told.set_value(status.message());
  };
  runtime->Join(*runtime->process_set(0), call);
  EXPECT_EQ(told.get_future().get(), "");
}

// A rank that has joined gets no rows, though it takes part.
TEST(comm_stats_of_rows_without_a_rank_that_has_joined) {
  CountJob(
      3,
      [](Runtime* runtime) {
        if (runtime->topology().rank > 0) {
          auto call = Start(runtime, {"rows", Verb::kAllgather},
                            {Filled(5, 1.0f), Filled(2, 1.0f)});
          EXPECT_EQ(call->Wait().message(), "");
        }
        Join(runtime);
        // It may be answered before this rank's part in the batch is done.
        const Counter& batches = runtime->counters().verbs[1].batches;
        while (batches.value() == 0) std::this_thread::yield();
      },
      [](int rank, const CommCounters& counters) {
        const VerbCounters& allgather = counters.verbs[1];
        EXPECT_EQ(allgather.batches.value(), 1u);
        EXPECT_EQ(allgather.collectives.value(), rank > 0 ? 1u : 0u);
        EXPECT_EQ(allgather.rows.value(), rank > 0 ? 2u * (5 + 2) : 0u);
      });
}

// Rows of one float. Sizes go first: a number for each segment, to each rank.
TEST(comm_stats_of_an_alltoall) {
  constexpr int kSize = 3;
  CountJob(
      kSize,
      [](Runtime* runtime) {
        Ask ask{"rows", Verb::kAlltoall};
        ask.splits = {{2, 3, 4}};
        auto call = Start(runtime, ask, {Filled(12, 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
      },
      [](int rank, const CommCounters& counters) {
        const VerbCounters& alltoall =
            counters.verbs[static_cast<size_t>(Verb::kAlltoall)];
        EXPECT_EQ(alltoall.rows.value(), 3u * (2 + rank));
        EXPECT_EQ(alltoall.blocks.value(), 2u * (kSize - 1));
        EXPECT_EQ(alltoall.payload_bytes.value(),
                  (2 + 3 + 4 - (2u + rank)) * sizeof(float));
        EXPECT_EQ(alltoall.header_bytes.value(),
                  2u * (kSize - 1) * 16 + (kSize - 1) * sizeof(int64_t));
      });
}

// Each rank owns a third, and gets the others' blocks of it.
TEST(comm_stats_of_a_reducescatter) {
  constexpr int kSize = 3;
  CountJob(
      kSize,
      [](Runtime* runtime) {
        auto call =
            Start(runtime, {"r", Verb::kReducescatter}, {Filled(9, 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
      },
      [](int, const CommCounters& counters) {
        const VerbCounters& reducescatter =
            counters.verbs[static_cast<size_t>(Verb::kReducescatter)];
        ExpectSent(reducescatter, kSize - 1, (kSize - 1) * 3 * sizeof(float));
      });
}

TEST(comm_stats_of_a_broadcast) {
  constexpr int kSize = 3;
  CountJob(
      kSize,
      [](Runtime* runtime) {
        auto call =
            Start(runtime, {"b", Verb::kBroadcast}, {Filled(100, 1.0f)});
        EXPECT_EQ(call->Wait().message(), "");
      },
      [](int, const CommCounters& counters) {
        EXPECT_EQ(counters.verbs[2].collectives.value(), 1u);
        EXPECT_EQ(counters.verbs[2].batches.value(), 1u);
      });
  // Over hosts of one rank each it is a tree. All in all each rank but the root
  // gets it once.
  uint64_t payload_bytes[kSize] = {};
  ThreadWorld world(kSize, {"a", "b", "c"});
  RunRanks(kSize, [&](int rank) {
    Runtime runtime(world.Open(rank), Quiet());
    EXPECT_EQ(runtime.Start({}).message(), "");
    auto call = Start(&runtime, {"b", Verb::kBroadcast}, {Filled(100, 1.0f)});
    EXPECT_EQ(call->Wait().message(), "");
    runtime.Stop();
    payload_bytes[rank] = runtime.counters().verbs[2].payload_bytes.value();
  });
  EXPECT_EQ(payload_bytes[0] + payload_bytes[1] + payload_bytes[2],
            (kSize - 1) * 100 * sizeof(float));
}

// One tensor at a time: a report of each member, and a record to each.
TEST(comm_stats_of_the_control_plane) {
  static constexpr uint64_t kCalls = 50;
  CountJob(
      2,
      [](Runtime* runtime) {
        for (uint64_t n = 0; n < kCalls; ++n) {
          auto call = Start(runtime, {"x"}, {Filled(10, 1.0f)});
          EXPECT_EQ(call->Wait().message(), "");
        }
      },
      [](int rank, const CommCounters& counters) {
        uint64_t report_bytes = 0, log_bytes = 0;
        for (uint64_t n = 0; n < kCalls; ++n) {
          Report report{n, {}};
          LogMessage log{n + 1, {}};
          AgreedTensor agreed{1, {}, {}};
          if (n == 0) {
            Submission submission;
            submission.key.name = agreed.key.name = "x";
            submission.signature.shapes = {{10}};
            report.items.push_back(submission);
          } else {
            report.items.push_back(CachedSubmissions{0, {1}});
          }
          log.records.push_back(AgreedBatch{{agreed}});
          report_bytes += Encode({0, report}).size();
          log_bytes += Encode({0, log}).size();
        }
        const bool leads = rank == 0;
        EXPECT_EQ(counters.control_bytes_sent.value(),
                  leads ? log_bytes : report_bytes);
        EXPECT_EQ(counters.control_bytes_received.value(),
                  leads ? report_bytes : log_bytes);
        EXPECT_EQ(counters.control_messages_sent.value(), kCalls);
        EXPECT_EQ(counters.control_messages_received.value(), kCalls);
      });
}

TEST(comm_stats_as_json) {
  CommCounters counters;
  counters.of(Verb::kBroadcast).rows.Add(3);
  counters.control_bytes_sent.Add(7);
  const std::string text = ToJson(counters);
  EXPECT_TRUE(text.find("\"control_bytes_sent\":7,") != std::string::npos);
  EXPECT_TRUE(text.find("\"broadcast\":{\"collectives\":0,\"batches\":0,"
                        "\"rows\":3,") != std::string::npos);
}

}  // namespace
}  // namespace hvd
