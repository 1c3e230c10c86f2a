// SPDX-License-Identifier: Apache-2.0
// Leader and negotiators under random programs: steps of every verb and with
// loops, eager calls, aborts, refused calls, disagreements, joins, evictions,
// delays, sets.
//
// HVD_TEST_STRESS_S=120 goes on for so many seconds. HVD_TEST_STRESS_SEED
// repeats the round that a failure named.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/options.h"
#include "core/verbs/verb_rules.h"
#include "fuzz_world.h"
#include "harness.h"

namespace hvd {
namespace {

constexpr int kRounds = test::Times(400, 100);
constexpr int kNoisyTicks = 1500;
// Steps that every rank must complete once nothing disturbs it, and the time
// that it has for them. Stale aborts may still cost it some steps.
constexpr int kQuietSteps = 6;
constexpr int kQuietTicks = 20000;

struct Call {
  Key key;
  Signature signature;
};

// How often things go wrong, and ranks join: one in so many. 0: never.
struct Noise {
  int abort = 0, refuse = 0, disagree = 0, join = 0, take_back = 0;
};

// What the steps of all ranks are made of: a tensor for each verb, and the
// iterations of a loop.
struct Body {
  std::vector<Verb> verbs;
  int iterations = 0;
};

std::vector<Call> StepOf(FuzzWorld* world, const Body& body) {
  std::vector<Call> calls;
  for (size_t i = 0; i < body.verbs.size(); ++i) {
    Call& call = calls.emplace_back();
    call.key.name = "t" + std::to_string(i);
    call.signature.verb = body.verbs[i];
    call.signature.shapes = {{static_cast<int64_t>(i) + 1, 2}};
    if (RulesOf(body.verbs[i]).first_dim_varies) {
      call.signature.shapes[0][0] = world->random().Below(5);
    }
    if (RulesOf(body.verbs[i]).has_ids) call.signature.table_rows = {40};
  }
  for (int i = 1; i <= body.iterations; ++i) {
    Call& call = calls.emplace_back();
    call.key = {"loop", static_cast<uint64_t>(i)};
    call.signature.shapes = {{i % 2 == 0 ? 3 : 5}};
  }
  std::shuffle(calls.begin(), calls.end(), world->random().engine);
  return calls;
}

// One rank's program on one set: a training loop whose steps are run as
// TensorFlow runs them, and a thread of eager calls beside it.
class Program {
 public:
  Program(FuzzWorld* world, int rank, int set, const Body& body)
      : world_(world),
        rank_(rank),
        set_(set),
        body_(body),
        step_(rank * int64_t{1000000}) {
    BeginStep();
  }

  void Act(const Noise& noise) {
    if (join_ != 0) return WaitForOthers(noise);
    ActEagerly(noise);
    if (has_failed_) {
      EndFailedStep(noise);
      return;
    }
    for (int i = world_->random().Below(4); i > 0 && !calls_.empty(); --i) {
      SubmitNext(noise);
    }
    if (noise.abort > 0 && world_->random().OneIn(noise.abort)) {
      why_ = Cancelled("NaN");
      has_failed_ = true;
    }
    if (has_failed_ || !calls_.empty() || !open_.empty()) return;
    ++completed_;
    EndStep(noise);
  }

  // So many whole steps and eager calls more than now.
  void SetGoal(int count) {
    goal_ = completed_ + count;
    eager_goal_ = eager_calls_ + count;
  }
  bool is_at_goal() const {
    return completed_ >= goal_ && eager_calls_ >= eager_goal_;
  }
  // Whether all of its calls have been answered.
  bool is_answered() const {
    return open_.empty() && !eager_waits_ && join_ == 0;
  }
  int set() const { return set_; }
  std::string Waiting() const {
    std::string text;
    for (const auto& [ticket, call] : open_) {
      text += " " + call.key.name + "/" + std::to_string(call.key.instance);
    }
    if (eager_waits_) text += " eager";
    if (join_ != 0) text += " join";
    return "rank " + std::to_string(rank_) + " in set " + std::to_string(set_) +
           ", step " + std::to_string(step_) + ":" + text;
  }

 private:
  void BeginStep() {
    ++step_;
    has_failed_ = is_aborted_ = false;
    calls_ = StepOf(world_, body_);
  }

  // Goes on, or joins. Where others have joined it follows soon, so that they
  // do not wait for ever.
  void EndStep(const Noise& noise) {
    FuzzWorld::Random& random = world_->random();
    const bool joins = world_->CountJoined(set_) > 0
                           ? random.OneIn(4)
                           : noise.join > 0 && random.OneIn(noise.join);
    if (!joins) return BeginStep();
    // It may be answered before Join returns.
    auto is_answered = std::make_shared<bool>(false);
    const uint64_t ticket =
        world_->Join(rank_, set_, [this, is_answered](const Status&) {
          *is_answered = true;
          join_ = 0;
          BeginStep();
        });
    if (!*is_answered) join_ = ticket;
  }

  void WaitForOthers(const Noise& noise) {
    if (noise.take_back == 0 || !world_->random().OneIn(noise.take_back)) {
      return;
    }
    world_->TakeBackJoin(rank_, set_, join_);
  }

  Request Ask(const Call& call, int64_t step, const Noise& noise) {
    Request request{call.key, call.signature, step, Status::Ok()};
    FuzzWorld::Random& random = world_->random();
    if (noise.refuse > 0 && random.OneIn(noise.refuse)) {
      request.error = InvalidArgument("refused");
    }
    if (noise.disagree > 0 && random.OneIn(noise.disagree)) {
      request.signature.dtype = request.signature.wire_dtype = DataType::kInt32;
    }
    return request;
  }

  void SubmitNext(const Noise& noise) {
    const Call call = std::move(calls_.back());
    calls_.pop_back();
    // A call may be answered before Submit returns.
    auto ticket = std::make_shared<uint64_t>(0);
    auto is_answered = std::make_shared<bool>(false);
    *ticket = world_->Submit(rank_, set_, Ask(call, step_, noise),
                             [this, ticket, is_answered](const Status& status) {
                               *is_answered = true;
                               open_.erase(*ticket);
                               if (status.ok() || has_failed_) return;
                               has_failed_ = true;
                               why_ = status;
                             });
    if (!*is_answered) open_[*ticket] = call;
  }

  // TensorFlow cancels what is left of a step, and begins the next when all has
  // been answered.
  void EndFailedStep(const Noise& noise) {
    if (!is_aborted_) {
      is_aborted_ = true;
      const std::map<uint64_t, Call> open = open_;
      for (const auto& [ticket, call] : open) {
        world_->Cancel(rank_, set_, ticket, why_);
      }
      // Kernels that come too late find the step cancelled. Where none does and
      // nothing was under way either, nobody could know of the aborted step.
      bool is_told = !open.empty();
      for (const Call& call : calls_) {
        if (is_told && !world_->random().OneIn(3)) continue;
        world_->AbortStep(rank_, set_, call.key, step_, why_);
        is_told = true;
      }
    }
    if (open_.empty()) EndStep(noise);
  }

  void ActEagerly(const Noise& noise) {
    if (eager_waits_ || world_->random().OneIn(2)) return;
    Call call;
    call.key.name = "eager";
    call.signature.shapes = {{7}};
    eager_waits_ = true;
    ++eager_calls_;
    world_->Submit(rank_, set_, Ask(call, 0, noise),
                   [this](const Status&) { eager_waits_ = false; });
  }

  FuzzWorld* const world_;
  const int rank_, set_;
  const Body body_;
  int64_t step_;
  std::vector<Call> calls_;        // of this step, to be submitted
  std::map<uint64_t, Call> open_;  // by ticket
  bool has_failed_ = false, is_aborted_ = false;
  Status why_;
  uint64_t join_ = 0;  // the ticket of the join that waits; 0: none
  int completed_ = 0, goal_ = 0;
  bool eager_waits_ = false;
  int eager_calls_ = 0, eager_goal_ = 0;
};

class Round {
 public:
  explicit Round(uint64_t seed)
      : random_(seed * 2654435761u),
        world_(seed, Sets(&random_), MakeOptions(&random_)) {
    const Body body = DrawBody(&random_);
    programs_.resize(world_.size());
    for (int rank = 0; rank < world_.size(); ++rank) {
      for (int set = 0; set < world_.set_count(); ++set) {
        if (!world_.IsMember(rank, set)) continue;
        programs_[rank].push_back(
            std::make_unique<Program>(&world_, rank, set, body));
      }
    }
  }

  // What went wrong. Empty: nothing.
  std::string Run() {
    Noise noise = {20 + random_.Below(200), 50 + random_.Below(500),
                   100 + random_.Below(1000)};
    if (random_.OneIn(4)) noise = {15, 5, 0};  // hardly a whole step
    if (random_.OneIn(2)) noise.join = 5 + random_.Below(100);
    if (random_.OneIn(3)) noise.take_back = 10 + random_.Below(200);
    // The global set is never removed.
    const int removed =
        random_.OneIn(2) ? random_.Below(world_.set_count()) : 0;
    const int removed_at = random_.Below(kNoisyTicks);
    for (int i = 0; i < kNoisyTicks && world_.error().empty(); ++i) {
      if (removed > 0 && i == removed_at) {
        world_.Close(removed);
        removed_ = removed;
      }
      Tick(noise);
    }
    for (auto& programs : programs_) {
      for (auto& program : programs) program->SetGoal(kQuietSteps);
    }
    for (int i = 0; i < kQuietTicks && world_.error().empty(); ++i) {
      Tick(Noise());
      if (WaitingPrograms().empty()) return world_.error();
    }
    if (!world_.error().empty()) return world_.error();
    return "not every rank goes on:" + WaitingPrograms();
  }

 private:
  static std::vector<std::vector<int>> Sets(FuzzWorld::Random* random) {
    const int size = 2 + random->Below(4);
    std::vector<std::vector<int>> sets(1);
    for (int rank = 0; rank < size; ++rank) sets[0].push_back(rank);
    while (random->OneIn(3)) {
      std::vector<int> ranks;
      for (int rank = 0; rank < size; ++rank) {
        if (random->OneIn(2)) ranks.push_back(rank);
      }
      if (!ranks.empty()) sets.push_back(std::move(ranks));
    }
    return sets;
  }

  static Body DrawBody(FuzzWorld::Random* random) {
    Body body;
    const int tensors = 1 + random->Below(random->OneIn(3) ? 1 : 6);
    // A rank that has joined fails a reducescatter, so not often.
    const int verbs = random->OneIn(4) ? kVerbCount : kVerbCount - 1;
    std::vector<Verb> all = {Verb::kAllreduce,    Verb::kAllgather,
                             Verb::kBroadcast,    Verb::kAlltoall,
                             Verb::kBarrier,      Verb::kSparseAllreduce,
                             Verb::kReducescatter};
    for (int i = 0; i < tensors; ++i) {
      body.verbs.push_back(all[random->Below(verbs)]);
    }
    body.iterations = random->OneIn(2) ? 0 : random->Below(5);
    return body;
  }

  static Options MakeOptions(FuzzWorld::Random* random) {
    Options options = Options::Defaults();
    const int cache_entries[] = {0, 2, 5, 1000};
    options.cache_entries = cache_entries[random->Below(4)];
    options.batches_in_flight = 1 + random->Below(4);
    if (random->OneIn(3)) options.fusion_bytes = 64;
    return options;
  }

  // Those that have not reached their goal.
  std::string WaitingPrograms() const {
    std::string text;
    for (const auto& programs : programs_) {
      for (const auto& program : programs) {
        const bool is_removed = removed_ > 0 && program->set() == removed_;
        const bool is_well =
            is_removed ? program->is_answered() && world_.HasDrained(removed_)
                       : program->is_at_goal();
        if (!is_well) text += "\n " + program->Waiting();
      }
    }
    return text;
  }

  // Some ranks get the processor, in any order.
  void Tick(const Noise& noise) {
    world_.Tick();
    for (size_t i = 0; i < programs_.size(); ++i) {
      const int rank = random_.Below(world_.size());
      for (auto& program : programs_[rank]) {
        if (random_.OneIn(2)) program->Act(noise);
      }
      world_.Pass(rank);
    }
  }

  FuzzWorld::Random random_;
  FuzzWorld world_;
  std::vector<std::vector<std::unique_ptr<Program>>> programs_;  // by rank
  int removed_ = 0;                                              // 0: no set
};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

TEST(negotiator_random_programs_agree_and_go_on) {
  using Clock = std::chrono::steady_clock;
  const int64_t seconds = FromEnvironment("HVD_TEST_STRESS_S", 0);
  const int64_t first = FromEnvironment("HVD_TEST_STRESS_SEED", 1);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  for (int64_t seed = first; seed < first + kRounds || Clock::now() < end;
       ++seed) {
    const std::string error = Round(static_cast<uint64_t>(seed)).Run();
    EXPECT_EQ(error, "");
    if (!error.empty()) {
      std::printf("in the round of HVD_TEST_STRESS_SEED=%lld\n",
                  static_cast<long long>(seed));
      return;
    }
  }
}

}  // namespace
}  // namespace hvd
