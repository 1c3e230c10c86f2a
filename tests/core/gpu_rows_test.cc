// SPDX-License-Identifier: Apache-2.0
// What ranks tell of their rows, where a peer tells nonsense.
#include "transport/device/gpu_rows.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "harness.h"

namespace hvd {
namespace {

constexpr int kRanks = 2;

// Rank 0's batch of two tables.
struct Tables {
  std::vector<int64_t> ids[2] = {{1, 4, 9}, {0, 2}};
  Batch batch;

  explicit Tables(bool knows_rows) {
    batch.verb = Verb::kSparseAllreduce;
    for (size_t s = 0; s < 2; ++s) {
      Segment& segment = batch.segments.emplace_back();
      segment.ids = ids[s].data();
      segment.rows = static_cast<int64_t>(ids[s].size());
      segment.row_count = 4;
      segment.count = segment.rows * segment.row_count;
      segment.table_rows = s == 0 ? 1000 : -1;
      if (knows_rows) batch.rows.push_back({segment.rows, segment.rows});
    }
  }
};

// Rank 0 has sent what it has; rank 1 has sent this.
Status Heard(GpuRows* rows, const std::vector<std::byte>& message) {
  const std::vector<std::byte>& own = rows->sent();
  auto* const to = static_cast<std::byte*>(
      rows->Receive({static_cast<int64_t>(own.size()),
                     static_cast<int64_t>(message.size())}));
  std::memcpy(to, own.data(), own.size());
  if (!message.empty()) {
    std::memcpy(to + own.size(), message.data(), message.size());
  }
  return rows->Read();
}

std::vector<std::byte> Message(const std::vector<int64_t>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(int64_t));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

TEST(the_ids_of_both_ranks_are_united) {
  for (const bool knows_rows : {true, false}) {
    Tables tables(knows_rows);
    GpuRows rows(&tables.batch, 0, kRanks, true);
    EXPECT_EQ(rows.MessageBytes().size(), knows_rows ? 2u : 0u);
    EXPECT_EQ(Heard(&rows, rows.sent()).message(), "");
    EXPECT_TRUE(rows.ResultRows() == (RankCounts{{3}, {2}}));
  }
}

TEST(nonsense_is_an_error) {
  const int64_t most = INT64_MAX;
  const std::vector<std::vector<std::byte>> messages = {
      {},
      Message({3}),
      Message({3, 2}),             // no ids
      Message({-1, 0}),            // fewer rows than none
      Message({most, 0}),          // more than the table has
      Message({0, most}),          // more than there can be
      Message({0, most / 8 + 1}),  // whose bytes would be none
      Message({1000, -2}),
      Message({0, 1, 5, 5}),  // too long
      Message({0, 2, 7, 7}),  // an id twice
      Message({0, 2, 7, 6}),  // not ascending
      Message({0, 1, -7}),    // below 0
  };
  for (const std::vector<std::byte>& message : messages) {
    Tables tables(false);
    GpuRows rows(&tables.batch, 0, kRanks, true);
    EXPECT_EQ(Heard(&rows, message).code(), StatusCode::kInternal);
  }
  // Other numbers than the log has.
  Tables tables(true);
  GpuRows rows(&tables.batch, 0, kRanks, true);
  EXPECT_EQ(Heard(&rows, Message({0, 0})).code(), StatusCode::kInternal);
}

TEST(random_bytes_never_crash) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    Tables tables(i % 2 == 0);
    GpuRows rows(&tables.batch, 0, kRanks, true);
    std::vector<std::byte> message = rows.sent();
    for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
      message[random() % message.size()] = static_cast<std::byte>(random());
    }
    message.resize(message.size() - random() % 2);
    (void)Heard(&rows, message);
  }
}

// A rank that cannot take part sends as much as its peers expect.
TEST(a_rank_that_cannot_take_part) {
  Tables tables(true);
  GpuRows rows(&tables.batch, 0, kRanks, true);
  tables.batch.segments[0].ids = tables.batch.segments[1].ids = nullptr;
  GpuRows none(&tables.batch, 0, kRanks, false);
  EXPECT_EQ(none.sent().size(), rows.sent().size());
}

// Ranks with about as many rows have as much room, and one call.
TEST(calls_of_the_communicator) {
  for (const bool is_even : {true, false}) {
    Tables tables(false);
    GpuRows rows(&tables.batch, 0, kRanks, true);
    std::vector<std::byte> message = rows.sent();
    if (!is_even) message = Message({0, 0});
    ASSERT_TRUE(Heard(&rows, message).ok());
    std::vector<std::byte> gpu(static_cast<size_t>(rows.gpu_bytes()));
    std::vector<std::byte> pinned(static_cast<size_t>(rows.pinned_bytes()));
    std::vector<int64_t> ids[2] = {std::vector<int64_t>(3),
                                   std::vector<int64_t>(2)};
    float sums[12];
    rows.Place(gpu.data(), pinned.data(),
               {sums, ids[0].data(), sums, ids[1].data()});
    ASSERT_EQ(rows.calls().calls.size(), 2u);
    const CommunicatorCall& first = rows.calls().calls[0];
    EXPECT_TRUE(first.kind == (is_even ? CommunicatorCall::Kind::kAllgather
                                       : CommunicatorCall::Kind::kBroadcast));
    EXPECT_EQ(first.count, int64_t{3 * 4 * sizeof(float)});
    EXPECT_TRUE(ids[0] == tables.ids[0] && ids[1] == tables.ids[1]);
  }
}

}  // namespace
}  // namespace hvd
