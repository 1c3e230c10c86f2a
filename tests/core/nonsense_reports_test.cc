// SPDX-License-Identifier: Apache-2.0
// Leader: reports that parse and make no sense are refused, or harmless.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/control/leader.h"
#include "harness.h"
#include "nonsense.h"

namespace hvd {
namespace {

// What rank 1 may report: all kinds, of calls that the log knows and others.
std::vector<ReportItem> GoodItems() {
  std::vector<ReportItem> items;
  for (int i = 0; i < kCalls; ++i) {
    const Request request = CallOf(i);
    Submission submission;
    submission.key = request.key;
    submission.signature = request.signature;
    submission.step = request.step;
    items.emplace_back(submission);
  }
  Submission cached;
  cached.signature_number = 2;  // the allgather
  cached.key.instance = 1;
  cached.first_dims = {3, 4};
  items.emplace_back(cached);
  items.emplace_back(CachedSubmissions{1, {3, 4}});
  items.emplace_back(Withdrawal{{"c", 0}, 1, Cancelled("NaN")});
  items.emplace_back(ScopeEnd{"c", "it is over"});
  items.emplace_back(Join{});
  items.emplace_back(Unjoin{});
  items.emplace_back(SetRequest{false, {0, 2}, 0, {}});
  items.emplace_back(SetRequest{true, {}, 1, {}});
  items.emplace_back(SetAnswer{2, {}});
  return items;
}

// A leader that has agreed on some calls, whose other ranks wait for more.
class LeaderJob {
 public:
  LeaderJob() : leader_({0, 1, 2}, SmallCache()) {
    leader_.LeadSets(std::make_unique<SetChanges>(
        kRanks, std::vector<std::vector<int>>{{0, 1}}));
    const std::vector<ReportItem> items = GoodItems();
    const std::vector<ReportItem> calls(items.begin(), items.begin() + kCalls);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(leader_.Handle(rank, {0, calls}, now_).ok());
    }
    TakeRecords();
    EXPECT_TRUE(records_ >= kCalls);
    EXPECT_TRUE(leader_.Handle(2, {0, calls}, now_).ok());
  }

  // True: all of it was taken for good.
  bool Handle(int rank, const Report& report) {
    const Status status = leader_.Handle(rank, report, now_);
    if (!status.ok()) EXPECT_EQ(status.code(), StatusCode::kInternal);
    TakeRecords();
    (void)leader_.Watch(now_ + std::chrono::hours(1));
    return status.ok();
  }

 private:
  void TakeRecords() {
    while (const std::optional<LogRecord> record = leader_.Next(0)) {
      ++records_;
      EXPECT_FALSE(Encode(*record).empty());
    }
  }

  Leader leader_;
  Leader::Clock::time_point now_{};
  int records_ = 0;
};

TEST(a_leader_survives_reports_that_make_no_sense) {
  std::mt19937 random(1);
  const std::vector<ReportItem> items = GoodItems();
  int parsed = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    Report good{0, {items[random() % items.size()]}};
    if (random() % 4 == 0) good.items.push_back(items[random() % items.size()]);
    // The kind, the set, and the record that it has seen.
    const std::string bad = Damaged(Encode({0, good}), 3, &random);
    largest_bytes = 0;
    const Result<Envelope> envelope = Decode(bad);
    if (envelope.ok()) {
      ++parsed;
      LeaderJob job;
      const auto& report = std::get<Report>(envelope.value().message);
      // The others too, so that what makes no sense is agreed on.
      for (int rank : {1, 0, 2}) refused += job.Handle(rank, report) ? 0 : 1;
    }
    if (!EXPECT_TRUE(largest_bytes < kMostBytes)) return;
  }
  EXPECT_TRUE(parsed > kRounds / 10);
  EXPECT_TRUE(refused > parsed / 20);
}

TEST(a_call_larger_than_any_memory_fails_and_no_more) {
  for (const Shape& shape : {Shape{-1, 2}, Shape{int64_t{1} << 50},
                             Shape{0, int64_t{1} << 40, int64_t{1} << 40}}) {
    Leader leader({0, 1}, Options::Defaults());
    Submission submission;
    submission.key.name = "x";
    submission.signature.shapes = {shape};
    for (int rank : {0, 1}) {
      EXPECT_TRUE(leader.Handle(rank, {0, {submission}}, {}).ok());
    }
    const std::optional<LogRecord> record = leader.Next(0);
    ASSERT_TRUE(record.has_value());
    const auto* failure = std::get_if<Failure>(&*record);
    ASSERT_TRUE(failure != nullptr);
    EXPECT_EQ(failure->status.message(),
              "'x' failed on rank 0: its shapes are larger than any memory.");
  }
}

}  // namespace
}  // namespace hvd
