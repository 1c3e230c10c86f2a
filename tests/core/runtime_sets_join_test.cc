// SPDX-License-Identifier: Apache-2.0
// Process sets that change while ranks are in a join.
#include <optional>
#include <string>

#include "harness.h"
#include "runtime_join.h"
#include "runtime_sets.h"

namespace hvd {
namespace {

bool Says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

TEST(sets_do_not_wait_for_a_rank_that_has_joined) {
  RunJoins(
      3,
      [](Runtime* runtime, int rank, int) {
        const auto set = [&] {
          return runtime->AddProcessSet({0, 1}).status();
        };
        std::optional<JoinUnderWay> join;
        if (rank == 1) {
          join.emplace(runtime);
          EXPECT_TRUE(Says(set(), "while this rank waits in hvd.join()"));
        } else {
          EXPECT_EQ(set().message(),
                    "add_process_set([0, 1]) needs every rank of the job, and "
                    "hvd.join() has been called on rank 1; add and remove "
                    "process sets before any rank joins, or after all have.");
          join.emplace(runtime);
        }
        EXPECT_EQ(join->Wait().status.message(), "");
        EXPECT_EQ(set().message(), "");
        EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
      },
      Dynamic());
}

TEST(sets_change_when_a_join_was_taken_back) {
  RunJoins(
      3,
      [](Runtime* runtime, int rank, int) {
        for (int turn = 0; turn < 20; ++turn) {
          if (rank == 1) JoinAndTakeBack(runtime, turn);
          // Others may have asked while it was there. Then they ask again.
          Status status = runtime->AddProcessSet({0, 1}).status();
          while (rank != 1 && Says(status, "needs every rank")) {
            status = runtime->AddProcessSet({0, 1}).status();
          }
          EXPECT_EQ(status.message(), "");
          EXPECT_EQ(runtime->RemoveProcessSet(1).message(), "");
        }
      },
      Dynamic());
}

}  // namespace
}  // namespace hvd
