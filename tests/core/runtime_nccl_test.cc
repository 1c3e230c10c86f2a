// SPDX-License-Identifier: Apache-2.0
// Runtime with tensors on cards that reduce among themselves by NCCL: how they
// come to it, what they leave to the host, and what goes wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "card_calls.h"
#include "core/log.h"
#include "core/runtime.h"
#include "fake_nccl.h"
#include "harness.h"
#include "runtime_calls.h"
#include "temp_directory.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

Result<const NcclLibrary*> Nccl(int /*rank*/) {
  static const Result<NcclLibrary> library = NcclLibrary::Find(&FakeNccl::Find);
  return &library.value();
}

// The lines that ranks log while it lives.
class Lines {
 public:
  Lines() {
    SetLogSink([this](LogLevel, const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    });
  }
  ~Lines() { SetLogSink(nullptr); }
  std::vector<std::string> taken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

bool Contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// Until NCCL carries the ranks' sums, or `limit` is over.
bool BecomesDirect(int rank, int size, Runtime* runtime, TestCard* card,
                   milliseconds limit = milliseconds(10000)) {
  const int before = FakeNccl::completed();
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    CardCall sum(card, runtime, "warm", Filled(10, 1.0f + rank));
    EXPECT_EQ(sum.Wait().message(), "");
    EXPECT_TRUE(sum.Values() == Filled(10, size * (size + 1) / 2.0f));
    // All ranks must leave together, so they agree on it.
    const float mine = FakeNccl::completed() > before           ? 2.0f
                       : std::chrono::steady_clock::now() > end ? 1.0f
                                                                : 0.0f;
    PendingPtr all =
        Start(runtime, {"done", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
    EXPECT_EQ(all->Wait().message(), "");
    if (all->out[0][0] > 0) return all->out[0][0] > 1;
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST(cards_come_to_reduce_among_themselves) {
  for (const int size : {1, 2, 4}) {
    FakeNccl::Reset();
    const Lines lines;
    RunOnCards(
        size,
        [size](int rank, Runtime* runtime, TestCard* card) {
          ASSERT_TRUE(BecomesDirect(rank, size, runtime, card));
          EXPECT_EQ(FakeNccl::identities(), 1);
        },
        Nccl);
  }
}

TEST(tensors_of_the_host_and_of_cards_in_any_order) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        // It becomes direct somewhere in between.
        for (int step = 0; step < 40; ++step) {
          std::vector<std::unique_ptr<CardCall>> calls(6);
          std::vector<PendingPtr> of_host(6);
          for (int i = 0; i < 6; ++i) {
            const int t = (i + rank * 2) % 6;
            const size_t count = static_cast<size_t>(t) * 977;
            const std::string name = "t" + std::to_string(t);
            of_host[t] =
                Start(runtime, {"host" + name}, {Filled(count, 2.0f + step)});
            calls[t] = std::make_unique<CardCall>(
                card, runtime, name, Filled(count, rank + 1.0f + step));
          }
          for (int t = 0; t < 6; ++t) {
            const size_t count = static_cast<size_t>(t) * 977;
            EXPECT_EQ(calls[t]->Wait().message(), "");
            EXPECT_EQ(of_host[t]->Wait().message(), "");
            EXPECT_TRUE(calls[t]->Values() == Filled(count, 6.0f + 3 * step));
            EXPECT_TRUE(of_host[t]->out[0] == Filled(count, 6.0f + 3 * step));
          }
        }
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, card));
      },
      Nccl);
}

TEST(ops_and_scales) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, size, runtime, card));
        const int before = FakeNccl::completed();
        const struct {
          CardAsk ask;
          float result;
        } cases[] = {
            {{"sum", ReduceOp::kSum}, 9},
            {{"mean", ReduceOp::kAverage}, 3},
            {{"least", ReduceOp::kMin}, 2},
            {{"most", ReduceOp::kMax}, 4},
            {{"product", ReduceOp::kProduct}, 24},
            {{"scaled", ReduceOp::kSum, 0.5, 3.0}, 13.5},
            {{"scaled mean", ReduceOp::kAverage, 2.0, 0.25}, 1.5},
            {{"scaled least", ReduceOp::kMin, 2.0, 1.0}, 4},
        };
        for (const auto& one : cases) {
          CardCall call(card, runtime, one.ask, Filled(33, rank + 2.0f));
          EXPECT_EQ(call.Wait().message(), "");
          for (const float value : call.Values()) {
            EXPECT_NEAR(value, one.result, 1e-6);
          }
        }
        // Nobody is ahead of the others by more than the last, which staged.
        // By then all cards have done with them.
        EXPECT_EQ(
            Start(runtime, {"done", Verb::kAllreduce, ReduceOp::kMin}, {{1}})
                ->Wait()
                .message(),
            "");
        EXPECT_EQ(FakeNccl::completed() - before, 8);
      },
      Nccl);
}

TEST(the_timeline_says_which_way_a_batch_went) {
  FakeNccl::Reset();
  const TempDirectory directory;
  const std::string path = directory.file("all.json");
  Options options = Options::Defaults();
  options.timeline = path;
  RunOnCards(
      2,
      [&](int rank, Runtime* runtime, TestCard* card) {
        EXPECT_TRUE(BecomesDirect(rank, 2, runtime, card));
      },
      Nccl, {}, options);
  const std::string text = TextOf(path);
  EXPECT_TRUE(Contains(text, "\"NCCL_ALLREDUCE\""));
  EXPECT_TRUE(Contains(text, "\"MPI_ALLREDUCE\""));  // those before
}

// --- What keeps them on the host ---

void CheckStaged(int size,
                 const std::function<void(int, Runtime*, TestCard*)>& prepare,
                 const std::function<Result<const NcclLibrary*>(int)>& find,
                 const std::string& why,
                 const Options& options = Options::Defaults(),
                 milliseconds connect_limit = CudaLanes::kConnectLimit) {
  Lines lines;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        prepare(rank, runtime, card);
        EXPECT_FALSE(
            BecomesDirect(rank, size, runtime, card, milliseconds(400)));
      },
      find, {}, options, connect_limit);
  std::vector<std::string> found;
  for (const std::string& line : lines.taken()) {
    if (Contains(line, "reduced in host memory, not by NCCL: ")) {
      found.push_back(line);
    }
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Contains(found[0], why));
  if (!Contains(found[0], why)) std::printf("%s\n", found[0].c_str());
  EXPECT_EQ(FakeNccl::completed(), 0);
}

void Nothing(int, Runtime*, TestCard*) {}

TEST(a_rank_without_the_library) {
  FakeNccl::Reset();
  CheckStaged(
      3, Nothing, [](int rank) { return rank == 1 ? NoNccl(1) : Nccl(rank); },
      "rank 1 says: libnccl.so.2 cannot be loaded: it is not there");
  // NCCL does not listen where nobody will come.
  EXPECT_EQ(FakeNccl::identities(), 0);
}

TEST(ranks_that_share_a_card) {
  FakeNccl::Reset();
  CheckStaged(
      3,
      [](int rank, Runtime*, TestCard* card) {
        card->card().set_identity(rank == 0 ? 7 : 8);
      },
      Nccl, "rank 1 and rank 2 share a GPU");
}

TEST(a_rank_that_looks_for_nan) {
  FakeNccl::Reset();
  Options options = Options::Defaults();
  options.check_numerics = 1;
  CheckStaged(2, Nothing, Nccl, "rank 0 says: HVD_CHECK_NUMERICS is set",
              options);
}

TEST(a_rank_that_is_told_not_to) {
  FakeNccl::Reset();
  Options options = Options::Defaults();
  options.nccl = 0;
  CheckStaged(2, Nothing, Nccl, "rank 0 says: HVD_NCCL is 0", options);
}

TEST(a_rank_that_does_not_connect) {
  FakeNccl::Reset();
  FakeNccl::FailConnect(2);
  CheckStaged(3, Nothing, Nccl, "NCCL failed: unhandled system error (2)");
}

TEST(ranks_that_cannot_reach_each_other) {
  FakeNccl::Reset();
  FakeNccl::HoldConnect();
  CheckStaged(3, Nothing, Nccl, "NCCL did not connect within 0 s",
              Options::Defaults(), milliseconds(50));
}

// --- Tensors that travel together ---

// They are one call of NCCL where all cards can pack them.
TEST(tensors_travel_in_one_buffer) {
  for (const bool all_can : {true, false}) {
    FakeNccl::Reset();
    RunOnCards(
        2,
        [&](int rank, Runtime* runtime, TestCard* card) {
          ASSERT_TRUE(BecomesDirect(rank, 2, runtime, card));
          for (int step = 0; step < 10; ++step) {
            std::vector<std::unique_ptr<CardCall>> calls;
            for (int t = 0; t < 20; ++t) {
              // Larger than the buffer was before, and then smaller.
              const auto count =
                  static_cast<size_t>((step % 4) * 1000 + t * 77 + 1);
              calls.push_back(std::make_unique<CardCall>(
                  card, runtime,
                  CardAsk{"t" + std::to_string(t), ReduceOp::kAverage, 0.5, 3},
                  Filled(count, static_cast<float>(rank + step))));
            }
            for (const auto& call : calls) {
              EXPECT_EQ(call->Wait().message(), "");
              for (const float value : call->Values()) {
                EXPECT_NEAR(value, 1.5 * (step + 0.5), 1e-5);
              }
            }
          }
        },
        Nccl, {}, Options::Defaults(), CudaLanes::kConnectLimit,
        [&](int rank) {
          return rank == 0 || all_can ? FakeKernelImage() : nullptr;
        });
    const int of_tensors = FakeNccl::calls(CommunicatorCall::Kind::kAllreduce);
    const int groups = FakeNccl::completed() * 2;
    EXPECT_EQ(of_tensors == groups, all_can);
    EXPECT_EQ(FakeNccl::misfitting(), 0);
  }
}

// The ranks whose cards have some hear of the one that has none, and go on.
TEST(a_card_without_memory_for_them) {
  FakeNccl::Reset();
  RunOnCards(
      3,
      [](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, 3, runtime, card));
        if (rank == 1) card->RunOutOfBuffers();
        const CardAsk scaled = {"scaled", ReduceOp::kSum, 0.5};
        CardCall large(card, runtime, scaled, Filled(5000, 1.0f));
        const Status status = large.Wait();
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
        EXPECT_TRUE(Contains(status.message(),
                             rank == 1 ? "has no memory for 20032 bytes"
                                       : "rank 1 had no memory"));
        // Whole tensors go as they lie.
        EXPECT_TRUE(BecomesDirect(rank, 3, runtime, card));
      },
      Nccl);
}

// --- What goes on beside them ---

Status JoinAll(Runtime* runtime) {
  auto call = std::make_shared<JoinCall>();
  std::promise<Status> joined;
  call->ticket = runtime->NewTicket();
  call->done = [&](const Status& status, int) { joined.set_value(status); };
  runtime->Join(*runtime->process_set(0), call);
  return joined.get_future().get();
}

TEST(a_rank_that_has_joined) {
  FakeNccl::Reset();
  const int size = 3;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        for (const bool before : {true, false}) {
          // First before they are direct, and then after it.
          if (!before) {
            ASSERT_TRUE(BecomesDirect(rank, size, runtime, card));
          }
          if (rank != 1) {
            for (int step = 0; step < 5; ++step) {
              CardCall sum(card, runtime, "sum", Filled(10, 1.0f + rank));
              EXPECT_EQ(sum.Wait().message(), "");
              EXPECT_TRUE(sum.Values() == Filled(10, 4.0f));
            }
          }
          EXPECT_EQ(JoinAll(runtime).message(), "");
        }
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, card));
      },
      Nccl);
}

// It is connected while it has joined, and says so while the others meet again
// and again. It must not ask twice.
TEST(a_rank_that_joins_while_it_connects) {
  const int size = 3;
  for (int round = 0; round < 10; ++round) {
    FakeNccl::Reset();
    FakeNccl::HoldConnect();
    RunOnCards(
        size,
        [&](int rank, Runtime* runtime, TestCard* card) {
          const auto sum_up = [&](float sum) {
            CardCall call(card, runtime, "sum", Filled(10, 1.0f + rank));
            EXPECT_EQ(call.Wait().message(), "");
            EXPECT_TRUE(call.Values() == Filled(10, sum));
          };
          // All know of the communicator once rank 0 has given it an identity,
          // and some batches have followed.
          for (int after = 0; after < 3;) {
            sum_up(6.0f);
            const float mine = FakeNccl::identities() == 1 ? 1.0f : 0.0f;
            PendingPtr all = Start(
                runtime, {"known", Verb::kAllreduce, ReduceOp::kMin}, {{mine}});
            ASSERT_EQ(all->Wait().message(), "");
            after += all->out[0][0] > 0 ? 1 : 0;
          }
          FakeNccl::ReleaseConnect(rank == 1 ? 0 : rank);
          if (rank != 1) {
            for (int step = 0; step < 40; ++step) {
              sum_up(4.0f);
              if (rank == 0 && step == 10 + round) FakeNccl::ReleaseConnect(1);
            }
          }
          ASSERT_EQ(JoinAll(runtime).message(), "");
          EXPECT_TRUE(BecomesDirect(rank, size, runtime, card));
        },
        Nccl);
    if (test::failures > 0) return;
  }
}

// Each rank comes to its sets in an order of its own. The card does one batch
// at a time.
TEST(sets_that_share_ranks) {
  FakeNccl::Reset();
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2}, {0, 1}, {1, 2}, {0, 2}, {2}};
  std::atomic<int> direct{0};
  RunOnCards(
      3,
      [&](int rank, Runtime* runtime, TestCard* card) {
        std::mt19937 draw(static_cast<unsigned>(rank));
        for (int step = 0; step < 60; ++step) {
          std::vector<int> mine;
          for (int i = 0; i < 15; ++i) {
            const std::vector<int>& set = sets[static_cast<size_t>(i % 5)];
            if (std::count(set.begin(), set.end(), rank) > 0) mine.push_back(i);
          }
          std::shuffle(mine.begin(), mine.end(), draw);
          std::map<int, std::unique_ptr<CardCall>> calls;
          for (const int i : mine) {
            const auto values = Filled(static_cast<size_t>(i) * 31 + 1,
                                       static_cast<float>(rank + step));
            calls[i] = std::make_unique<CardCall>(
                card, runtime,
                CardAsk{"t" + std::to_string(i), ReduceOp::kSum, 1, 1, i % 5},
                values);
          }
          for (const auto& [i, call] : calls) {
            float sum = 0;
            for (const int r : sets[static_cast<size_t>(i % 5)]) {
              sum += static_cast<float>(r + step);
            }
            EXPECT_EQ(call->Wait().message(), "");
            EXPECT_TRUE(call->Values() ==
                        Filled(static_cast<size_t>(i) * 31 + 1, sum));
          }
          if (step == 50) direct = FakeNccl::completed();
        }
      },
      Nccl, {sets.begin() + 1, sets.end()});
  // One of each set, and by then all batches went that way.
  EXPECT_EQ(FakeNccl::identities(), 5);
  EXPECT_TRUE(FakeNccl::completed() > direct + 9 * 5);
  EXPECT_EQ(FakeNccl::gone_early(), 0);
}

// Its card has done with the last batch long before the other's has.
TEST(a_rank_that_leaves_first) {
  FakeNccl::Reset();
  RunOnCards(
      2,
      [](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, card));
        if (rank == 1) FakeNccl::HoldKernels(1);
        CardCall sum(card, runtime, "last", Filled(100, 1.0f + rank));
        if (rank == 1) {
          std::this_thread::sleep_for(milliseconds(500));
          FakeNccl::ReleaseKernels();
        }
        EXPECT_EQ(sum.Wait().message(), "");
        EXPECT_TRUE(sum.Values() == Filled(100, 3.0f));
      },
      Nccl);
  EXPECT_EQ(FakeNccl::gone_early(), 0);
}

// Its entry ends with the step's words, and the next step is right.
TEST(a_step_that_is_aborted) {
  FakeNccl::Reset();
  const int size = 2;
  RunOnCards(
      size,
      [&](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, size, runtime, card));
        const auto is_open = std::make_shared<std::atomic<bool>>(rank != 1);
        card->card().Queue(card->framework_stream(),
                           [is_open] { return is_open->load(); });
        CardCall sum(card, runtime, CardAsk{"slow", ReduceOp::kSum, 1, 1, 0, 5},
                     Filled(1000, 1.0f));
        // It is with the cards, where rank 1's is late.
        std::this_thread::sleep_for(milliseconds(100));
        EXPECT_FALSE(sum.told());
        if (rank == 0) {
          runtime->Cancel(0, sum.ticket, Cancelled("the step was aborted"));
        }
        std::this_thread::sleep_for(milliseconds(300));
        *is_open = true;
        const Status status = sum.Wait();
        if (rank == 0) EXPECT_FALSE(status.ok());
        EXPECT_TRUE(BecomesDirect(rank, size, runtime, card));
      },
      Nccl);
}

// --- What ends the job ---

TEST(a_card_that_hangs) {
  FakeNccl::Reset();
  RunOnCards(
      2,
      [](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, card));
        if (rank == 1) card->ComputeOnce(std::make_shared<bool>(false));
        CardCall sum(card, runtime, "sum", Filled(100000, 1.0f));
        if (rank == 0) {
          const Status status = sum.Wait();
          EXPECT_EQ(status.code(), StatusCode::kPeerLost);
          EXPECT_TRUE(Contains(status.message(), "rank 1"));
          return;
        }
        // Until the batch is with the cards.
        std::this_thread::sleep_for(milliseconds(200));
        runtime->Stop();
        EXPECT_FALSE(sum.Wait().ok());
      },
      Nccl);
}

TEST(a_launch_that_fails) {
  FakeNccl::Reset();
  RunOnCards(
      2,
      [](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, card));
        if (rank == 1) FakeNccl::FailLaunch(1);
        CardCall sum(card, runtime, "sum", Filled(100, 1.0f));
        const Status status = sum.Wait();
        EXPECT_FALSE(status.ok());
        EXPECT_TRUE(Contains(status.message(), "unhandled system error"));
        if (rank == 0) EXPECT_TRUE(Contains(status.message(), "rank 1"));
      },
      Nccl);
}

TEST(an_error_that_comes_later) {
  FakeNccl::Reset();
  RunOnCards(
      2,
      [](int rank, Runtime* runtime, TestCard* card) {
        ASSERT_TRUE(BecomesDirect(rank, 2, runtime, card));
        if (rank == 1) FakeNccl::FailAsync(1);
        CardCall sum(card, runtime, "sum", Filled(100, 1.0f));
        const Status status = sum.Wait();
        if (rank == 1) {
          EXPECT_FALSE(status.ok());
          EXPECT_TRUE(Contains(status.message(), "remote process exited"));
        }
        CardCall next(card, runtime, "next", Filled(100, 1.0f));
        EXPECT_FALSE(next.Wait().ok());
      },
      Nccl);
}

}  // namespace
}  // namespace hvd
