// SPDX-License-Identifier: Apache-2.0
// Negotiator: log records that parse and make no sense are refused, or
// harmless.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/control/known_sets.h"
#include "core/control/negotiator.h"
#include "core/executor_batch.h"
#include "core/verbs/verb_rules.h"
#include "harness.h"
#include "nonsense.h"
#include "transport/collectives/batch_check.h"

namespace hvd {
namespace {

// Records that rank 1 could be told of next.
std::vector<LogRecord> GoodRecords() {
  std::vector<LogRecord> records;
  for (int i = 0; i < kCalls; ++i) {
    const Request request = CallOf(i);
    AgreedTensor tensor;
    tensor.signature_number = static_cast<SignatureNumber>(i) + 10;
    tensor.key = request.key;
    if (request.signature.verb == Verb::kAllgather) {
      tensor.first_dims = {{1, 3, 5}, {0, 4, 0}};
    }
    records.emplace_back(AgreedBatch{{tensor}});
    // The same, and this rank has no part in it.
    tensor.key.name += "/absent";
    tensor.signature = request.signature;
    if (!tensor.first_dims.empty()) tensor.first_dims = {{1, 0, 5}, {0, 0, 0}};
    records.emplace_back(AgreedBatch{{tensor}, {1}, 2});
  }
  AgreedTensor known;
  known.signature_number = 1;
  records.emplace_back(AgreedBatch{{known}});
  records.emplace_back(AgreedBatch{{known}, {0, 1}});
  records.emplace_back(Failure{
      PeerLost("no"), {{1, {}, 0, {{0, 1}}}, {0, {"c", 0}, 0, {{1, 2}}}}});
  records.emplace_back(Eviction{{1}});
  records.emplace_back(Tuning{1 << 20, 4096, 4});
  records.emplace_back(Skipped{3});
  records.emplace_back(Joined{2});
  records.emplace_back(JoinWithdrawn{1});
  for (uint8_t step = 0; step < kSetStepCount; ++step) {
    SetChange change;
    change.step = static_cast<SetStep>(step);
    change.serial = change.id = change.slot = 1;
    change.ranks = {0, 1};
    change.status = InvalidArgument("no");
    records.emplace_back(change);
  }
  return records;
}

// Rank 1 with calls of all verbs and a join under way.
class MemberJob {
 public:
  MemberJob() : member_(0, 1, {0, 1, 2}, SmallCache(), 1 << 20) {
    // A number that it knows, and whose call waits again.
    Submit(Known());
    AgreedTensor known;
    known.signature_number = 1;
    known.key.name = "known";
    EXPECT_TRUE(member_.HandleLog({1, {AgreedBatch{{known}}}}).ok());
    Execute();
    EXPECT_EQ(answers_["known"], 1);
    Submit(Known());
    for (int i = 0; i < kCalls; ++i) Submit(CallOf(i));
    Request refused = CallOf(0);
    refused.key.name = "refused";
    refused.error = InvalidArgument("no");
    Submit(std::move(refused));
    auto join = std::make_shared<JoinCall>();
    join->done = [this](const Status&, int) { ++answers_["join"]; };
    member_.Join(std::move(join));
    EXPECT_TRUE(member_.Advance(0, {}).ok());
  }

  bool Handle(const LogMessage& log) {
    const Status status = member_.HandleLog(log);
    if (!status.ok()) EXPECT_EQ(status.code(), StatusCode::kInternal);
    Execute();
    for (const LoggedChange& logged : member_.TakeSetChanges()) {
      if (CheckSetChange(logged.change, kRanks).ok()) {
        (void)known_sets_.Apply(logged.change);
      }
    }
    EXPECT_TRUE(member_.Advance(0, {}).ok());
    return status.ok();
  }

  // The job ends. All have been answered, and once.
  void ExpectAnswers() {
    member_.FailAll(PeerLost("the end"));
    EXPECT_EQ(answers_.size(), asked_.size() + 1);
    EXPECT_EQ(answers_["join"], 1);
    for (const auto& [name, times] : asked_) EXPECT_EQ(answers_[name], times);
  }

 private:
  static Request Known() {
    Request request;
    request.key.name = "known";
    request.signature.shapes = {{7}};
    return request;
  }

  void Submit(Request request) {
    auto entry = std::make_shared<Entry>();
    const size_t tensors = request.signature.shapes.size();
    const std::string name = request.key.name;
    ++asked_[name];
    if (request.error.ok()) {
      const size_t buffers = tensors * BuffersOf(request.signature.verb);
      entry->inputs.assign(buffers, nullptr);
      entry->outputs.assign(buffers, nullptr);
    }
    if (RulesOf(request.signature.verb).has_splits) {
      entry->splits.assign(tensors, {1, 1, 1});
    }
    entry->request = std::move(request);
    entry->done = [this, name](const Status&) { ++answers_[name]; };
    member_.Submit(std::move(entry));
  }

  // As far as a transport's check of the batch.
  void Execute() {
    while (std::optional<ReadyItem> item = member_.TakeReady()) {
      const auto* ready = std::get_if<ReadyBatch>(&*item);
      if (ready == nullptr) continue;
      const Batch batch = MakeBatch(*ready, false);
      if (RulesOf(batch.verb).uses_wire) {
        (void)CheckBatch(batch, 1, kRanks);
      }
      for (const Outstanding& tensor : ready->tensors) {
        if (!tensor.cancelled) tensor.entry->done(Status::Ok());
      }
    }
  }

  Negotiator member_;
  KnownSets known_sets_;
  std::map<std::string, int> asked_, answers_;
};

TEST(a_member_survives_records_that_make_no_sense) {
  std::mt19937 random(1);
  const std::vector<LogRecord> records = GoodRecords();
  int parsed = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    LogMessage good{2, {records[random() % records.size()]}};
    if (random() % 4 == 0) {
      good.records.push_back(records[random() % records.size()]);
    }
    // The kind, the set, and the first number.
    const std::string bad = Damaged(Encode({0, good}), 3, &random);
    largest_bytes = 0;
    const Result<Envelope> envelope = Decode(bad);
    if (envelope.ok()) {
      ++parsed;
      MemberJob job;
      refused +=
          job.Handle(std::get<LogMessage>(envelope.value().message)) ? 0 : 1;
      job.ExpectAnswers();
    }
    if (!EXPECT_TRUE(largest_bytes < kMostBytes) || test::failures > 0) {
      std::printf("  in round %d\n", round);
      return;
    }
  }
  EXPECT_TRUE(parsed > kRounds / 10);
  EXPECT_TRUE(refused > parsed / 5);
}

// Each of these was applied once.
TEST(a_member_refuses_what_no_leader_says) {
  AgreedTensor scalar;
  scalar.key.name = "s";
  scalar.signature = CallOf(static_cast<int>(Verb::kAlltoall)).signature;
  scalar.signature->shapes = {{}};
  AgreedTensor empty = scalar;
  empty.signature->shapes = {{0, int64_t{1} << 40, int64_t{1} << 40}};
  AgreedTensor scatter = scalar;
  scatter.signature = CallOf(static_cast<int>(Verb::kReducescatter)).signature;
  AgreedTensor renamed;
  renamed.key.name = "c";
  renamed.signature_number = 1;
  AgreedTensor refused;
  refused.key.name = "refused";
  for (const LogRecord& record : std::vector<LogRecord>{
           AgreedBatch{{scalar}, {1}}, AgreedBatch{{empty}, {1}},
           AgreedBatch{{scatter}, {1}}, AgreedBatch{{renamed}},
           AgreedBatch{{refused}}, JoinWithdrawn{1},
           Failure{Status::Ok(), {{0, {"c", 0}, 0, {{1, 1}}}}},
           // Twice, and once was asked.
           Failure{PeerLost("no"), {{0, {"c", 0}, 0, {{1, 1}, {1, 1}}}}}}) {
    MemberJob job;
    EXPECT_FALSE(job.Handle({2, {record}}));
    job.ExpectAnswers();
  }
}

}  // namespace
}  // namespace hvd
