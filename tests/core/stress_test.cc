// SPDX-License-Identifier: Apache-2.0
// Random jobs through the whole Runtime: every verb, many at once, aborted.
//
// HVD_TEST_STRESS_S=120 goes on for so many seconds; HVD_TEST_STRESS_SEED
// repeats the job that a failure named.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "random_calls.h"
#include "thread_backend.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

// For what may take milliseconds.
constexpr std::chrono::seconds kLimit(30);

// How a step ends on the ranks that abort it.
enum class AbortKind {
  kNone,
  kCancelled,  // an operation that is none of ours fails there
  kRefused,    // they make a call that is invalid
  kDisagree,   // they make a call of another shape
};

// A step as TensorFlow runs one: it fails as a whole, once one of its
// operations does. Shared by the entries that it has under way.
class Step : public std::enable_shared_from_this<Step> {
 public:
  Step(Runtime* runtime, int64_t number) : runtime_(runtime), number_(number) {}

  // From any thread. `spoil` may change the request.
  void Start(const RandomCall& call, uint64_t salt,
             const std::function<void(Request*)>& spoil = nullptr) {
    const ProcessSet& set = *runtime_->process_set(call.set);
    const Key key{call.name, 0};
    auto running = std::make_shared<Running>(call, set, salt);
    // The entry lives in what has its buffers.
    Entry& entry = running->entry;
    running->buffers.Describe(&entry);
    entry.request.key = key;
    entry.request.step = number_;
    if (spoil) spoil(&entry.request);
    entry.ticket = running->ticket = runtime_->NewTicket();
    entry.done = [this, raw = running.get()](const Status& status) {
      Finish(raw, status);
    };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!why_.ok()) {
        // An operation that starts late says so. Most never start.
        if (entry.ticket % 2 == 0) {
          runtime_->AbortStep(*runtime_->process_set(call.set), key, number_,
                              why_);
        }
        return;
      }
      running_.push_back(running);
      ++open_;
    }
    // What it is done with must live as long as its buffers.
    auto owners =
        std::make_shared<std::pair<std::shared_ptr<void>, RunningPtr>>(
            shared_from_this(), running);
    runtime_->Enqueue(call.set, EntryPtr(std::move(owners), &entry));
    std::unique_lock<std::mutex> lock(mutex_);
    running->enqueued = true;
    const Status why = why_;
    lock.unlock();
    if (!why.ok()) runtime_->Cancel(call.set, running->ticket, why);
  }

  // The same, and waits for its end.
  void Run(const RandomCall& call, uint64_t salt) {
    Start(call, salt);
    std::unique_lock<std::mutex> lock(mutex_);
    all_told_.wait_for(lock, kLimit, [this] { return open_ == 0; });
  }

  void Abort(const Status& why) {
    std::vector<RunningPtr> to_cancel;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!why_.ok()) return;
      why_ = why;
      for (const RunningPtr& running : running_) {
        if (running->enqueued && !running->result) to_cancel.push_back(running);
      }
    }
    for (const RunningPtr& running : to_cancel) {
      runtime_->Cancel(running->set, running->ticket, why);
    }
  }

  // An operation was about to start when the step was aborted.
  void AbortBeforeStart(const RandomCall& call) {
    std::lock_guard<std::mutex> lock(mutex_);
    runtime_->AbortStep(*runtime_->process_set(call.set), Key{call.name, 0},
                        number_, why_);
  }

  // What has come is right, and nothing is still waiting after a while.
  Status Wait(const std::string& where) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool told =
        all_told_.wait_for(lock, kLimit, [this] { return open_ == 0; });
    for (const RunningPtr& running : running_) {
      if (!told && !running->result) {
        test::Expect(false, HVD_HERE, where + ": an end of " + running->name);
      }
    }
    // A hang would take all the others' limits too.
    if (!told) std::_Exit(1);
    for (const RunningPtr& running : running_) {
      if (running->result->ok()) running->buffers.Check(where);
    }
    return why_;
  }

 private:
  struct Running {
    Running(const RandomCall& call, const ProcessSet& process_set,
            uint64_t salt)
        : name(call.name), set(call.set), buffers(call, process_set, salt) {}
    const std::string name;
    const int set;
    CallBuffers buffers;
    Entry entry;
    uint64_t ticket = 0;
    bool enqueued = false;
    std::optional<Status> result;
  };
  using RunningPtr = std::shared_ptr<Running>;

  void Finish(Running* running, const Status& status) {
    if (!status.ok()) Abort(status);
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(running->result.has_value());  // told once
    running->result = status;
    --open_;
    all_told_.notify_all();
  }

  Runtime* const runtime_;
  const int64_t number_;
  std::mutex mutex_;
  std::condition_variable all_told_;
  std::vector<RunningPtr> running_;
  int open_ = 0;
  Status why_;  // not Ok: aborted
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
  }

  void Run() {
    ThreadWorld world(size_, {}, options_.shm_chunk_bytes);
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
      // No rank may leave before the others have had what they need from it.
      Meet(&runtime, "leave");
    });
  }

  std::string Name() const {
    return "seed " + std::to_string(seed_) + " (" + std::to_string(size_) +
           " ranks, " + (shared_ ? "shared memory" : "mailboxes") + ")";
  }

 private:
  // An eager call of all ranks, which belongs to no step.
  void Meet(Runtime* runtime, const std::string& name) {
    auto step = std::make_shared<Step>(runtime, 0);
    step->Start(RandomCall{name, 0, {}, {1}}, 0);
    EXPECT_EQ(step->Wait(Name()).message(), "");
  }

  void RunGraph(Runtime* runtime, int graph) {
    const int rank = runtime->topology().rank;
    std::vector<ProcessSet> sets;
    for (int i = 0; i < runtime->process_set_count(); ++i) {
      sets.push_back(*runtime->process_set(i));
    }
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
        RunStep(runtime, calls, prefix, salt, number,
                victim ? kind : AbortKind::kNone, kind, &own);
      }
    }
  }

  void RunStep(Runtime* runtime, const std::vector<RandomCall>& calls,
               const std::string& prefix, uint64_t salt, int64_t number,
               AbortKind own_abort, AbortKind abort, Random* own) {
    auto step = std::make_shared<Step>(runtime, number);
    // From a tensor that was agreed in it the leader knows which steps of the
    // ranks are this one. Else ranks that go on must not be a step ahead.
    const bool known = salt % 2 == 0;
    if (known) step->Run(RandomCall{prefix + "early", 0, {}, {1}}, salt);
    // It breaks off on the victims. The others wait for it.
    RandomCall last{prefix + "last", 0, {}, {5}};
    std::vector<size_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), *own);
    const bool cancels = own_abort == AbortKind::kCancelled;
    if (cancels) order.resize(Below(*own, order.size() + 1));
    const int64_t before = Below(*own, order.size() + 1);
    for (size_t i = 0; i <= order.size(); ++i) {
      if (static_cast<int64_t>(i) == before && !cancels) {
        step->Start(last, salt, Spoiler(own_abort));
      }
      if (i == order.size()) break;
      const RandomCall& call = calls[order[i]];
      if (runtime->process_set(call.set)->rank < 0) continue;
      if ((*own)() % 4 == 0) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(Below(*own, 300)));
      }
      step->Start(call, salt);
    }
    if (cancels) {
      step->Abort(Cancelled("NaN in 'loss'"));
      step->AbortBeforeStart(last);
    }
    const std::string where = Name() + " step " + std::to_string(number);
    const Status end = step->Wait(where);
    test::Expect(end.ok() == (abort == AbortKind::kNone), HVD_HERE,
                 where + (end.ok() ? ": aborted" : ": ") + end.message());
    if (abort != AbortKind::kNone && !known) Meet(runtime, prefix + "meet");
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
  for (int64_t seed = first; seed < first + 25 || Clock::now() < end; ++seed) {
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
