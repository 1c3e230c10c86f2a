// SPDX-License-Identifier: Apache-2.0
// Random jobs through the whole Runtime: every verb, many at once, aborted, and
// with ranks that join.
//
// HVD_TEST_STRESS_S=120 goes on for so many seconds; HVD_TEST_STRESS_SEED
// repeats the job that a failure named.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faults.h"
#include "random_calls.h"
#include "run_ranks.h"
#include "stress_step.h"
#include "thread_world.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

// How a step ends on the ranks that abort it.
enum class AbortKind {
  kNone,
  kCancelled,  // an operation that is none of ours fails there
  kRefused,    // they make a call that is invalid
  kDisagree,   // they make a call of another shape
};

// What the ranks of a job do, drawn from its seed.
class Job {
 public:
  explicit Job(uint64_t seed) : seed_(seed) {
    Random random(seed);
    size_ = static_cast<int>(Pick<int64_t>(random, {2, 2, 3, 3, 4, 5, 8}));
    shared_ = random() % 2 == 0;
    options_.fusion_bytes = Pick<int64_t>(random, {0, 4096, 128 << 20});
    options_.cache_entries = Pick<int64_t>(random, {0, 3, 4096});
    options_.batches_in_flight = Pick<int64_t>(random, {1, 4});
    options_.shm_bytes = Pick<int64_t>(random, {65536, 1 << 20});
    options_.shm_chunk_bytes = Pick<int64_t>(random, {1024, 4096, 65536});
    slow_rank_ =
        random() % 3 == 0 ? static_cast<int>(Below(random, size_)) : -1;
    std::vector<int> even, but_first;
    for (int rank = 0; rank < size_; rank += 2) even.push_back(rank);
    for (int rank = 1; rank < size_; ++rank) but_first.push_back(rank);
    sets_ = {even, but_first, {0, size_ - 1}};
    Random others(seed + 7);
    // Shared memory has room for the sets within a host.
    if (!shared_) hosts_ = DrawHosts(others, size_);
  }

  void Run() {
    ThreadWorld world(size_, hosts_, options_.shm_chunk_bytes);
    RunRanks(size_, [&](int rank) {
      auto faults = std::make_shared<Faults>();
      if (rank == slow_rank_) faults->Delay(std::chrono::microseconds(100));
      Runtime runtime(shared_ ? world.OpenShared(rank, options_,
                                                 static_cast<int>(sets_.size()))
                              : world.Open(rank, faults),
                      options_);
      EXPECT_EQ(runtime.Start(sets_).message(), "");
      // As two sessions of one process.
      std::thread other([&] { RunGraph(&runtime, 1); });
      RunGraph(&runtime, 0);
      other.join();
      other = std::thread([&] {
        for (size_t set = 1; set <= sets_.size(); ++set) {
          RunUneven(&runtime, static_cast<int>(set));
        }
      });
      RunUneven(&runtime, 0);
      other.join();
      // No rank may leave before the others have had what they need from it.
      Meet(&runtime, Plan().SmallCall("leave", 1));
    });
  }

  std::string Name() const {
    return "seed " + std::to_string(seed_) + " (" + std::to_string(size_) +
           " ranks, " + (shared_ ? "shared memory" : "mailboxes") + ")";
  }

 private:
  // A step of all ranks of a set that have not joined.
  struct Plan {
    int set = 0;
    std::vector<int> absent = {};
    std::string prefix;
    std::vector<RandomCall> calls = {};
    uint64_t salt = 0;
    int64_t number = 0;
    AbortKind abort = AbortKind::kNone;      // by some rank
    AbortKind own_abort = AbortKind::kNone;  // by this one

    RandomCall SmallCall(const std::string& name, int64_t count) const {
      return {prefix + name, set, {}, {count}, absent};
    }
  };

  // By rank. Up to three, in any order.
  static std::vector<std::string> DrawHosts(Random& random, int size) {
    const int64_t count = 1 + Below(random, 3);
    std::vector<std::string> hosts;
    for (int rank = 0; rank < size; ++rank) {
      hosts.push_back("host" + std::to_string(Below(random, count)));
    }
    return hosts;
  }

  // An eager call of all ranks, which belongs to no step.
  void Meet(Runtime* runtime, const RandomCall& call) {
    auto step = std::make_shared<Step>(runtime, 0);
    step->Start(call, 0);
    EXPECT_EQ(step->Wait(Name()).message(), "");
  }

  void RunGraph(Runtime* runtime, int graph) {
    const int rank = runtime->topology().rank;
    std::vector<ProcessSet> sets;
    const auto registered = runtime->process_sets();
    for (const auto& [id, set] : *registered) sets.push_back(*set);
    const std::vector<ProcessSet> global = {sets[0]};
    Random random(seed_ * 2 + graph), own(seed_ * 100 + graph * 10 + rank);
    int64_t number = 1000000 * (rank + 1) + graph;
    for (int round = 0; round < 3; ++round) {
      // The names of the round before, with other signatures.
      const std::string prefix = "graph" + std::to_string(graph) + "/";
      // Which steps of the ranks belong together is known within a set only,
      // and where one graph at a time is aborted.
      const bool may_abort = graph == 0;
      const auto& its_sets = may_abort ? global : sets;
      std::vector<RandomCall> calls;
      const int64_t count = 1 + Below(random, 12);
      for (int64_t i = 0; i < count; ++i) {
        calls.push_back(DrawCall(random, prefix + std::to_string(i), its_sets));
      }
      for (int64_t steps = 1 + Below(random, 6); steps > 0; --steps) {
        const uint64_t salt = random();
        const AbortKind kind = may_abort && random() % 3 == 0
                                   ? static_cast<AbortKind>(1 + random() % 3)
                                   : AbortKind::kNone;
        // One rank or more, never all: they would not disagree.
        const int64_t first = Below(random, size_);
        const int64_t victims = 1 + Below(random, size_ - 1);
        const bool victim = (rank - first + size_) % size_ < victims;
        number += 2;
        RunStep(runtime,
                {0,
                 {},
                 prefix,
                 calls,
                 salt,
                 number,
                 kind,
                 victim ? kind : AbortKind::kNone},
                &own);
      }
    }
  }

  // The ranks of a set run out of steps one after another, and join. The others
  // go on without them. Twice.
  void RunUneven(Runtime* runtime, int set) {
    const ProcessSet members = *runtime->process_set(set);
    if (members.rank < 0) return;
    const auto size = static_cast<int>(members.ranks.size());
    Random random(seed_ * 1000 + set);
    Random own(seed_ * 1000 + set * 10 + members.rank);
    int64_t number = 1000000 * (members.rank + 1) + 500000 + 1000 * set;
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<int64_t> steps;  // by rank of the set
      for (int rank = 0; rank < size; ++rank) {
        steps.push_back(Below(random, 5));
      }
      const int64_t most = *std::max_element(steps.begin(), steps.end());
      for (int64_t i = 0; i < most; ++i) {
        Plan plan = DrawUnevenStep(&random, set, members, steps, i);
        plan.number = ++number;
        if (i < steps[members.rank]) RunStep(runtime, plan, &own);
      }
      const int last = Join(runtime, set);
      EXPECT_EQ(steps[static_cast<size_t>(last)], most);
    }
  }

  // Equal on all ranks, but for own_abort.
  Plan DrawUnevenStep(Random* random, int set, const ProcessSet& members,
                      const std::vector<int64_t>& steps, int64_t step) {
    Plan plan;
    plan.set = set;
    plan.prefix = "set" + std::to_string(set) + "/";
    plan.salt = (*random)();
    std::vector<int> present;
    for (int rank = 0; rank < static_cast<int>(steps.size()); ++rank) {
      (step < steps[rank] ? present : plan.absent).push_back(rank);
    }
    for (int64_t i = 1 + Below(*random, 8); i > 0; --i) {
      RandomCall call =
          DrawCall(*random, plan.prefix + std::to_string(i), {members});
      call.set = set;
      CallWithout(plan.absent, &call);
      plan.calls.push_back(std::move(call));
    }
    const auto kind = static_cast<AbortKind>((*random)() % 4);
    const int victim = Pick(*random, present);
    // A rank alone agrees with itself.
    if (present.size() > 1 && (*random)() % 3 == 0) plan.abort = kind;
    if (victim == members.rank) plan.own_abort = plan.abort;
    return plan;
  }

  // Returns the rank of the set that has joined last.
  int Join(Runtime* runtime, int set) {
    auto call = std::make_shared<JoinCall>();
    auto joined = std::make_shared<std::promise<int>>();
    call->ticket = runtime->NewTicket();
    call->done = [joined](const Status& status, int last_rank) {
      EXPECT_EQ(status.message(), "");
      joined->set_value(last_rank);
    };
    std::future<int> last_rank = joined->get_future();
    runtime->Join(*runtime->process_set(set), call);
    if (last_rank.wait_for(kStepLimit) == std::future_status::ready) {
      return std::max(last_rank.get(), 0);
    }
    test::Expect(false, HVD_HERE, Name() + ": an end of a join");
    std::_Exit(1);  // see Step::Wait
  }

  void RunStep(Runtime* runtime, const Plan& plan, Random* own) {
    const std::vector<RandomCall>& calls = plan.calls;
    auto step = std::make_shared<Step>(runtime, plan.number);
    // From a tensor that was agreed in it the leader knows which steps of the
    // ranks are this one. Else ranks that go on must not be a step ahead.
    const bool known = plan.salt % 2 == 0;
    if (known) step->Run(plan.SmallCall("early", 1), plan.salt);
    // It breaks off on the victims. The others wait for it.
    const RandomCall last = plan.SmallCall("last", 5);
    std::vector<size_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), *own);
    const bool cancels = plan.own_abort == AbortKind::kCancelled;
    if (cancels) order.resize(Below(*own, order.size() + 1));
    const int64_t before = Below(*own, order.size() + 1);
    for (size_t i = 0; i <= order.size(); ++i) {
      if (static_cast<int64_t>(i) == before && !cancels) {
        step->Start(last, plan.salt, Spoiler(plan.own_abort));
      }
      if (i == order.size()) break;
      const RandomCall& call = calls[order[i]];
      if (runtime->process_set(call.set)->rank < 0) continue;
      if ((*own)() % 4 == 0) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(Below(*own, 300)));
      }
      step->Start(call, plan.salt);
    }
    if (cancels) {
      step->Abort(Cancelled("NaN in 'loss'"));
      step->AbortBeforeStart(last);
    }
    const std::string where = Name() + " step " + std::to_string(plan.number);
    const Status end = step->Wait(where);
    test::Expect(end.ok() == (plan.abort == AbortKind::kNone), HVD_HERE,
                 where + (end.ok() ? ": aborted" : ": ") + end.message());
    if (plan.abort != AbortKind::kNone && !known) {
      Meet(runtime, plan.SmallCall("meet", 1));
    }
  }

  static std::function<void(Request*)> Spoiler(AbortKind kind) {
    if (kind == AbortKind::kRefused) {
      return
          [](Request* request) { request->error = InvalidArgument("wrong"); };
    }
    if (kind == AbortKind::kDisagree) {
      return [](Request* request) { request->signature.shapes[0][0] += 1; };
    }
    return nullptr;
  }

  const uint64_t seed_;
  int size_ = 0;
  bool shared_ = false;
  std::vector<std::string> hosts_;  // by rank; empty: one
  int slow_rank_ = -1;
  Options options_ = Options::Defaults();
  std::vector<std::vector<int>> sets_;
};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

TEST(stress_random_jobs) {
  const int64_t seconds = FromEnvironment("HVD_TEST_STRESS_S", 0);
  const int64_t first = FromEnvironment("HVD_TEST_STRESS_SEED", 1);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  for (int64_t seed = first;
       seed < first + test::Times(25, 10) || Clock::now() < end; ++seed) {
    Job job(seed);
    job.Run();
    if (test::failures > 0) {
      std::printf("in the job of %s\n", job.Name().c_str());
      return;
    }
  }
}

}  // namespace
}  // namespace hvd
