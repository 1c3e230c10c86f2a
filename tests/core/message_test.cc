// SPDX-License-Identifier: Apache-2.0
// Messages: every field survives the bytes, and bad bytes are refused.
#include "core/control/message.h"

#include <algorithm>
#include <limits>
#include <random>

#include "harness.h"

namespace hvd {
namespace {

Signature ExampleSignature() {
  Signature signature;
  signature.verb = Verb::kBroadcast;
  signature.dtype = DataType::kBfloat16;
  signature.wire_dtype = DataType::kFloat16;
  signature.memory = MemoryKind::kCuda;
  signature.reduce_op = ReduceOp::kProduct;
  signature.prescale = 1.0 / 3;
  signature.postscale = -0.0;
  signature.root = 7;
  signature.shapes = {{}, {0}, {3, int64_t{1} << 40}};
  return signature;
}

Envelope ExampleReport() {
  Submission full;
  full.key = {"gradient/dense/kernel:0", 12};
  full.signature = ExampleSignature();
  full.step = std::numeric_limits<int64_t>::min();
  full.error = InvalidArgument("no root 9");
  Submission cached;
  cached.signature_number = uint64_t{1} << 33;
  cached.key.instance = std::numeric_limits<uint64_t>::max();
  cached.first_dims = {5, 0};
  cached.step = 77;
  CachedSubmissions many{std::numeric_limits<int64_t>::min(),
                         {7, uint64_t{1} << 40, 1, 4000000000u, 0},
                         {3, int64_t{1} << 50, 0}};
  Withdrawal withdrawal{
      {"x", 1},
      3,
      Status(StatusCode::kCancelled, "NaN in 'loss'",
             {CauseKind::kCallFailed, std::numeric_limits<int>::max(), ""})};
  ScopeEnd end{"gradient/", "it is over"};
  const SetRequest request{true, {0, 1 << 20}, 300, InvalidArgument("no")};
  const SetAnswer answer{1 << 30, ResourceExhausted("none")};
  return {63, Report{9,
                     {full, cached, many, withdrawal, end, Join{}, Unjoin{},
                      request, answer}}};
}

Envelope ExampleLog() {
  AgreedTensor tensor;
  tensor.signature_number = 3;
  tensor.key = {"y", 0};
  tensor.first_dims = {{1, 2, 3}, {}};
  AgreedTensor known;
  known.signature_number = 9;
  AgreedTensor shown = tensor;
  shown.signature = ExampleSignature();
  const Status left =
      PeerLost("rank 1 left", {CauseKind::kRankRestarts, 1, "z"});
  return {0,
          LogMessage{100,
                     {AgreedBatch{{tensor, tensor}},
                      Failure{left,
                              {{0, {"z", 2}, 0, {{0, 5}, {7, 7}}},
                               {300, {"", 9}, 1, {{1023, 1023}}}}},
                      Eviction{{1, 2, 300}},
                      Tuning{128 << 20, int64_t{1} << 40, -1}, Skipped{1 << 20},
                      SetChange{SetStep::kClose,
                                1 << 30,
                                2,
                                63,
                                {5, 1 << 20},
                                FailedPrecondition("it was removed")},
                      AgreedBatch{{shown, known}, {0, 1 << 20}, 1022},
                      Joined{1 << 20}, JoinWithdrawn{3}}}};
}

Envelope ExampleHostReport() {
  HostSubmissions many{{1, 4, 1 << 20},
                       {0, -7, std::numeric_limits<int64_t>::max()},
                       {9, 8, uint64_t{1} << 40}};
  return {5, HostReport{77,
                        {many, HostMemberItem{4, ScopeEnd{"a/", "over"}},
                         HostMemberItem{1, Join{}}}}};
}

Envelope ExamplePeerEnds() {
  return {0, PeerEnds{PassOn::kToHost,
                      uint64_t{1} << 40,
                      {{5, false, "done", {}, -1, "", false, true},
                       {7,
                        true,
                        "ValueError: no",
                        {{0, 12}, {3, 1}},
                        2,
                        "OSError",
                        true}}}};
}

TEST(message_report_survives_its_bytes) {
  auto decoded = Decode(Encode(ExampleReport()));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().serial, 63);
  auto& report = std::get<Report>(decoded.value().message);
  EXPECT_EQ(report.log_seen, 9u);
  ASSERT_EQ(report.items.size(), 9u);
  auto& full = std::get<Submission>(report.items[0]);
  EXPECT_TRUE((full.key == Key{"gradient/dense/kernel:0", 12}));
  EXPECT_TRUE(full.signature == ExampleSignature());
  EXPECT_EQ(full.step, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(full.error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(full.error.message(), "no root 9");
  EXPECT_TRUE(full.error.cause() == nullptr);
  auto& cached = std::get<Submission>(report.items[1]);
  EXPECT_EQ(cached.signature_number, uint64_t{1} << 33);
  EXPECT_EQ(cached.key.instance, std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE((cached.first_dims == Shape{5, 0}));
  auto& many = std::get<CachedSubmissions>(report.items[2]);
  EXPECT_EQ(many.step, std::numeric_limits<int64_t>::min());
  EXPECT_TRUE((many.numbers == std::vector<SignatureNumber>{
                                   7, uint64_t{1} << 40, 1, 4000000000u, 0}));
  EXPECT_TRUE((many.first_dims == Shape{3, int64_t{1} << 50, 0}));
  auto& withdrawal = std::get<Withdrawal>(report.items[3]);
  EXPECT_EQ(withdrawal.why.message(), "NaN in 'loss'");
  EXPECT_EQ(withdrawal.step, 3);
  ASSERT_TRUE(withdrawal.why.cause() != nullptr);
  EXPECT_EQ(withdrawal.why.cause()->kind, CauseKind::kCallFailed);
  EXPECT_EQ(withdrawal.why.cause()->rank, std::numeric_limits<int>::max());
  EXPECT_EQ(withdrawal.why.cause()->tensor, "");
  EXPECT_EQ(std::get<ScopeEnd>(report.items[4]).name_prefix, "gradient/");
  EXPECT_TRUE(std::holds_alternative<Join>(report.items[5]));
  EXPECT_TRUE(std::holds_alternative<Unjoin>(report.items[6]));
  auto& request = std::get<SetRequest>(report.items[7]);
  EXPECT_TRUE(request.removes);
  EXPECT_TRUE((request.ranks == std::vector<int>{0, 1 << 20}));
  EXPECT_EQ(request.id, 300);
  EXPECT_EQ(request.error.message(), "no");
  auto& answer = std::get<SetAnswer>(report.items[8]);
  EXPECT_EQ(answer.serial, 1 << 30);
  EXPECT_EQ(answer.status.message(), "none");
}

TEST(message_host_report_survives_its_bytes) {
  auto decoded = Decode(Encode(ExampleHostReport()));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().serial, 5);
  auto& report = std::get<HostReport>(decoded.value().message);
  EXPECT_EQ(report.log_seen, 77u);
  ASSERT_EQ(report.items.size(), 3u);
  auto& many = std::get<HostSubmissions>(report.items[0]);
  EXPECT_TRUE((many.ranks == std::vector<int>{1, 4, 1 << 20}));
  EXPECT_TRUE((many.steps == std::vector<int64_t>{
                                 0, -7, std::numeric_limits<int64_t>::max()}));
  EXPECT_TRUE(
      (many.numbers == std::vector<SignatureNumber>{9, 8, uint64_t{1} << 40}));
  auto& member = std::get<HostMemberItem>(report.items[1]);
  EXPECT_EQ(member.rank, 4);
  EXPECT_EQ(std::get<ScopeEnd>(member.item).text, "over");
  auto& joins = std::get<HostMemberItem>(report.items[2]);
  EXPECT_EQ(joins.rank, 1);
  EXPECT_TRUE(std::holds_alternative<Join>(joins.item));
}

TEST(message_log_survives_its_bytes) {
  auto decoded = Decode(Encode(ExampleLog()));
  ASSERT_TRUE(decoded.ok());
  auto& log = std::get<LogMessage>(decoded.value().message);
  EXPECT_EQ(log.first_number, 100u);
  ASSERT_EQ(log.records.size(), 9u);
  auto& change = std::get<SetChange>(log.records[5]);
  EXPECT_TRUE(change.step == SetStep::kClose);
  EXPECT_EQ(change.serial, 1 << 30);
  EXPECT_EQ(change.id, 2);
  EXPECT_EQ(change.slot, 63);
  EXPECT_TRUE((change.ranks == std::vector<int>{5, 1 << 20}));
  EXPECT_EQ(change.status.message(), "it was removed");
  auto& without = std::get<AgreedBatch>(log.records[6]);
  EXPECT_TRUE((without.absent == std::vector<int>{0, 1 << 20}));
  EXPECT_EQ(without.divisor, 1022);
  ASSERT_EQ(without.tensors.size(), 2u);
  EXPECT_TRUE(without.tensors[0].signature == ExampleSignature());
  EXPECT_FALSE(without.tensors[1].signature.has_value());
  EXPECT_EQ(std::get<Joined>(log.records[7]).last_rank, 1 << 20);
  EXPECT_EQ(std::get<JoinWithdrawn>(log.records[8]).rank, 3);
  auto& batch = std::get<AgreedBatch>(log.records[0]);
  ASSERT_EQ(batch.tensors.size(), 2u);
  EXPECT_TRUE(batch.absent.empty() && batch.divisor == 0);
  EXPECT_TRUE((batch.tensors[1].first_dims ==
               std::vector<std::vector<int64_t>>{{1, 2, 3}, {}}));
  auto& failure = std::get<Failure>(log.records[1]);
  EXPECT_EQ(failure.status.code(), StatusCode::kPeerLost);
  ASSERT_EQ(failure.keys.size(), 2u);
  EXPECT_TRUE((failure.keys[0].key == Key{"z", 2}));
  ASSERT_EQ(failure.keys[0].ranks.size(), 2u);
  EXPECT_EQ(failure.keys[0].ranks[0].last, 5);
  EXPECT_EQ(failure.keys[0].ranks[1].first, 7);
  EXPECT_EQ(failure.keys[1].signature_number, 300u);
  EXPECT_TRUE((failure.keys[1].key == Key{"", 9}));
  EXPECT_EQ(failure.keys[1].older, 1);
  EXPECT_EQ(failure.keys[1].ranks[0].last, 1023);
  EXPECT_EQ(std::get<Skipped>(log.records[4]).count, uint64_t{1} << 20);
  ASSERT_TRUE(failure.status.cause() != nullptr);
  EXPECT_EQ(failure.status.cause()->kind, CauseKind::kRankRestarts);
  EXPECT_EQ(failure.status.cause()->rank, 1);
  EXPECT_EQ(failure.status.cause()->tensor, "z");
  EXPECT_TRUE((std::get<Eviction>(log.records[2]).numbers ==
               std::vector<SignatureNumber>{1, 2, 300}));
  EXPECT_TRUE((std::get<Tuning>(log.records[3]) ==
               Tuning{128 << 20, int64_t{1} << 40, -1}));
}

TEST(message_peer_ends_survive_their_bytes) {
  auto end = Decode(Encode(ExamplePeerEnds()));
  ASSERT_TRUE(end.ok());
  auto& ends = std::get<PeerEnds>(end.value().message);
  EXPECT_TRUE(ends.pass_on == PassOn::kToHost);
  EXPECT_EQ(ends.round, uint64_t{1} << 40);
  ASSERT_EQ(ends.ends.size(), 2u);
  EXPECT_EQ(ends.ends[0].rank, 5);
  EXPECT_EQ(ends.ends[0].text, "done");
  EXPECT_FALSE(ends.ends[0].failed);
  EXPECT_TRUE(ends.ends[0].restarts);
  auto& peer_end = ends.ends[1];
  EXPECT_EQ(peer_end.rank, 7);
  EXPECT_TRUE(peer_end.failed);
  EXPECT_EQ(peer_end.log_seen.at(3), 1u);
  EXPECT_EQ(peer_end.cause_rank, 2);
  EXPECT_EQ(peer_end.cause_text, "OSError");
  EXPECT_TRUE(peer_end.gave_up);
  EXPECT_FALSE(peer_end.restarts);
}

TEST(message_host_told_survives_its_bytes) {
  auto told = Decode(Encode({0, HostTold{uint64_t{1} << 40}}));
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(std::get<HostTold>(told.value().message).round, uint64_t{1} << 40);
}

TEST(message_beat_survives_its_bytes) {
  for (const Beat& beat :
       {Beat{false, false}, Beat{true, false}, Beat{false, true},
        Beat{true, true, int64_t{1} << 50, -7}}) {
    auto decoded = Decode(Encode({0, beat}));
    ASSERT_TRUE(decoded.ok());
    auto& back = std::get<Beat>(decoded.value().message);
    EXPECT_EQ(back.asks, beat.asks);
    EXPECT_EQ(back.wants_stacks, beat.wants_stacks);
    EXPECT_EQ(back.asked_ns, beat.asked_ns);
    EXPECT_EQ(back.clock_ns, beat.clock_ns);
  }
}

const TimelineChunk kChunk{3, true, std::string("a\0b", 3)};

TEST(message_timeline_survives_its_bytes) {
  auto control = Decode(Encode({0, TimelineControl{7, true, false}}));
  ASSERT_TRUE(control.ok());
  auto& told = std::get<TimelineControl>(control.value().message);
  EXPECT_EQ(told.number, 7u);
  EXPECT_TRUE(told.is_on && !told.mark_cycles);
  auto chunk = Decode(Encode({0, kChunk}));
  ASSERT_TRUE(chunk.ok());
  auto& sent = std::get<TimelineChunk>(chunk.value().message);
  EXPECT_EQ(sent.number, 3u);
  EXPECT_TRUE(sent.is_last);
  EXPECT_EQ(sent.events, kChunk.events);
  auto receipt = Decode(Encode({0, TimelineReceipt{300}}));
  ASSERT_TRUE(receipt.ok());
  EXPECT_EQ(std::get<TimelineReceipt>(receipt.value().message).number, 300u);
}

TEST(message_cut_or_lengthened_bytes_are_refused) {
  for (const Envelope& envelope :
       {ExampleReport(), ExampleHostReport(), ExampleLog(), ExamplePeerEnds(),
        Envelope{0, Beat{true, false}}, Envelope{0, TimelineControl{}},
        Envelope{0, kChunk}, Envelope{0, HostTold{1 << 20}},
        Envelope{0, TimelineReceipt{1 << 20}}}) {
    const std::string bytes = Encode(envelope);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(Decode(bytes.substr(0, size)).ok());
    }
    EXPECT_FALSE(Decode(bytes + '\0').ok());
  }
}

// The kind of a message, and of an item in it.
TEST(message_unknown_kinds_are_refused) {
  const auto kinds = static_cast<char>(std::variant_size_v<Message>);
  std::string bytes = Encode({0, HostTold{0}});
  for (const char kind : {kinds, static_cast<char>(kinds + 1), '\xff'}) {
    bytes[0] = kind;
    EXPECT_FALSE(Decode(bytes).ok());
  }
  // Kind, serial, log_seen and the number of items come before an item's kind.
  bytes = Encode({0, Report{0, {Unjoin{}}}});
  ASSERT_EQ(bytes.size(), 5u);
  bytes.back() = static_cast<char>(ReportItem(Join{}).index());
  EXPECT_TRUE(Decode(bytes).ok());
  bytes.back() = static_cast<char>(std::variant_size_v<ReportItem>);
  EXPECT_FALSE(Decode(bytes).ok());
}

// A Beat's `asks` and `wants_stacks` come behind the kind and the serial.
TEST(message_a_bool_is_0_or_1) {
  std::string bytes = Encode({0, Beat{true, false}});
  ASSERT_EQ(bytes.size(), 6u);
  EXPECT_EQ(bytes[2], 1);
  for (const size_t place : {size_t{2}, size_t{3}}) {
    std::string damaged = bytes;
    damaged[place] = 2;
    EXPECT_FALSE(Decode(damaged).ok());
  }
}

TEST(message_random_damage_never_crashes) {
  std::mt19937 random(7);
  for (const Envelope& envelope :
       {ExampleReport(), ExampleHostReport(), ExampleLog(), ExamplePeerEnds(),
        Envelope{0, Beat{true, false}}, Envelope{0, TimelineControl{}},
        Envelope{0, kChunk}, Envelope{0, HostTold{1 << 20}},
        Envelope{0, TimelineReceipt{1 << 20}}}) {
    const std::string bytes = Encode(envelope);
    for (int i = 0; i < 20000; ++i) {
      std::string damaged = bytes;
      for (int hits = 1 + static_cast<int>(random() % 3); hits > 0; --hits) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      auto decoded = Decode(damaged);
      // What does parse must be encodable again.
      if (decoded.ok()) EXPECT_FALSE(Encode(decoded.value()).empty());
    }
  }
}

TEST(message_in_steady_state_takes_few_bytes_a_tensor) {
  CachedSubmissions cached;
  cached.step = -0x123456789abcdef;
  std::mt19937 random(5);
  for (SignatureNumber number = 1000; number < 1100; ++number)
    cached.numbers.push_back(number);
  // A report before it: at most a byte for the step, the rest for the numbers.
  EXPECT_TRUE(Encode({0, Report{1000, {cached}}}).size() < 100 + 20);
  std::shuffle(cached.numbers.begin(), cached.numbers.end(), random);
  EXPECT_TRUE(Encode({0, Report{1000, {cached}}}).size() < 2 * 100 + 20);
}

}  // namespace
}  // namespace hvd
