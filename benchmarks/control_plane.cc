// SPDX-License-Identifier: Apache-2.0
// Drives the control plane at 2 to 1024 ranks in one thread, and counts what a
// step costs: messages, bytes, allocations and CPU time, leader and member.
//
// control_plane [TENSORS] [FIRST_RANKS] [LAST_RANKS]: the ranks are doubled
// from the first number to the last. Negotiators, codec and executors are the
// production code, called as the background loop calls them; the network is a
// queue for each rank, and a batch is done as soon as it is started. CPU is
// that of the passes of a rank, without sending, receiving and TensorFlow.
// After every step each rank must have executed each tensor once, and in the
// order of rank 0, or the program ends.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/executor.h"
#include "core/message.h"
#include "core/negotiator.h"
#include "core/options.h"

namespace hvd {
namespace {

int64_t allocations = 0;

constexpr int kMostRanks = 1024;
constexpr int kGatheredTensors = 16;
constexpr size_t kGroups = 8;

struct Arguments {
  int tensors = 161;  // ResNet-50's gradients
  int first_ranks = 2;
  int last_ranks = kMostRanks;
};

struct Workload {
  const char* name;
  Verb verb;
  int tensors;
  size_t groups;  // that come one after another, as in a backward pass
};

// What one rank did in one step.
struct Cost {
  double messages_in = 0, messages_out = 0;
  double bytes_in = 0, bytes_out = 0;
  double us = 0;
  double allocations = 0;
};

double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) / 1e3;
}

// Adds the CPU time and the allocations of its life.
class Meter {
 public:
  explicit Meter(Cost* cost)
      : cost_(cost), before_(allocations), begin_us_(CpuMicroseconds()) {}
  ~Meter() {
    cost_->us += CpuMicroseconds() - begin_us_;
    cost_->allocations += static_cast<double>(allocations - before_);
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  Cost* const cost_;
  const int64_t before_;
  const double begin_us_;
};

[[noreturn]] void Stop(const std::string& text) {
  std::fprintf(stderr, "control_plane: %s\n", text.c_str());
  std::exit(1);
}

void StopUnlessOk(const Status& status) {
  if (!status.ok()) Stop(status.message());
}

// Moves nothing: a batch is done at the next Progress.
class InstantTransport : public Transport {
 public:
  InstantTransport(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  BatchId Start(Batch, BatchDone done) override {
    dones_.push_back(std::move(done));
    return ++last_id_;
  }
  bool Progress() override {
    std::vector<BatchDone> dones = std::exchange(dones_, {});
    for (BatchDone& done : dones) done(Status::Ok());
    return !dones.empty();
  }
  void Cancel(BatchId, const Status&) override {}
  int in_flight() const override { return static_cast<int>(dones_.size()); }

 private:
  const int rank_, size_;
  BatchId last_id_ = 0;
  std::vector<BatchDone> dones_;
};

struct Letter {
  int from;
  std::string bytes;
};

// One rank's background thread.
class Rank {
 public:
  Rank(int rank, const std::vector<int>& ranks)
      : executor_(std::make_unique<InstantTransport>(
            rank, static_cast<int>(ranks.size()))),
        negotiator_(
            0, rank, ranks, Options::Defaults(),
            [this](ReadyBatch ready) { executor_.Execute(std::move(ready)); },
            [this](const Tuning& tuning) { return executor_.Tune(tuning); },
            [this] { return executor_.in_flight(); }) {}

  // `index` goes to executed() when the entry is done.
  EntryPtr MakeEntry(Signature signature, const std::string& name, int64_t step,
                     int index) {
    auto entry = std::make_shared<Entry>();
    entry->request.key.name = name;
    entry->request.signature = std::move(signature);
    entry->request.step = step;
    entry->ticket = ++last_ticket_;
    entry->inputs = {nullptr};
    entry->outputs = {nullptr};
    if (entry->request.signature.verb == Verb::kAllgather) {
      entry->allocate = [](const std::vector<Shape>&,
                           std::vector<void*>* outputs) {
        *outputs = {nullptr};
        return Status::Ok();
      };
    }
    entry->done = [this, index](const Status& status) {
      StopUnlessOk(status);
      executed_.push_back(index);
    };
    return entry;
  }

  void Submit(std::vector<EntryPtr>* entries) {
    Meter meter(&cost_);
    for (EntryPtr& entry : *entries) negotiator_.Submit(std::move(entry));
  }

  // As BackgroundLoop::Pass.
  std::vector<Negotiator::OutgoingMessage> Pass() {
    std::vector<Letter> letters = std::exchange(inbox_, {});
    cost_.messages_in += static_cast<double>(letters.size());
    Meter meter(&cost_);
    const auto now = Negotiator::Clock::now();
    for (Letter& letter : letters) {
      const Result<Envelope> envelope = Decode(letter.bytes);
      StopUnlessOk(envelope.status());
      const Message& message = envelope.value().message;
      if (const auto* report = std::get_if<Report>(&message)) {
        StopUnlessOk(negotiator_.HandleReport(letter.from, *report, now));
      } else {
        StopUnlessOk(negotiator_.HandleLog(std::get<LogMessage>(message)));
      }
    }
    StopUnlessOk(negotiator_.Advance(now).status());
    auto messages = negotiator_.TakeMessages();
    executor_.Progress();
    return messages;
  }

  void Receive(Letter letter) {
    cost_.bytes_in += static_cast<double>(letter.bytes.size());
    inbox_.push_back(std::move(letter));
  }
  void CountSent(size_t bytes) {
    cost_.messages_out += 1;
    cost_.bytes_out += static_cast<double>(bytes);
  }

  Cost TakeCost() { return std::exchange(cost_, {}); }
  std::vector<int>& executed() { return executed_; }
  bool idle() const { return negotiator_.idle() && inbox_.empty(); }

 private:
  Executor executor_;
  Negotiator negotiator_;
  std::vector<Letter> inbox_;
  std::vector<int> executed_;
  uint64_t last_ticket_ = 0;
  Cost cost_;
};

struct StepCost {
  Cost leader;
  Cost member;  // the mean
};

// A job of so many ranks, step by step.
class Job {
 public:
  Job(const Workload& workload, int size) : workload_(workload) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    for (int rank : ranks) {
      ranks_.push_back(std::make_unique<Rank>(rank, ranks));
    }
    for (int i = 0; i < workload.tensors; ++i) {
      names_.push_back("DistributedMomentum/gradient/stage_block_conv/kernel_" +
                       std::to_string(i));
    }
  }

  StepCost Step() {
    // Of a tf.function: a random number of its own on every rank.
    std::vector<int64_t> steps;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      steps.push_back(-static_cast<int64_t>(random_() >> 1));
    }
    const size_t tensors = names_.size();
    for (size_t group = 0; group < workload_.groups; ++group) {
      const size_t begin = tensors * group / workload_.groups;
      const size_t end = tensors * (group + 1) / workload_.groups;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        SubmitGroup(ranks_[rank].get(), steps[rank], begin, end);
      }
      Deliver();
    }
    CheckExecuted();
    StepCost cost;
    cost.leader = ranks_[0]->TakeCost();
    cost.member = MeanOfMembers();
    return cost;
  }

 private:
  // In an order of the rank's own.
  void SubmitGroup(Rank* rank, int64_t step, size_t begin, size_t end) {
    std::vector<size_t> order;
    for (size_t i = begin; i < end; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<EntryPtr> entries;
    for (size_t i : order) {
      Signature signature;
      signature.verb = workload_.verb;
      signature.shapes = {{64, 64}};
      if (workload_.verb == Verb::kAllgather) {
        signature.shapes[0][0] = static_cast<int64_t>(random_() % 1000);
      }
      entries.push_back(rank->MakeEntry(std::move(signature), names_[i], step,
                                        static_cast<int>(i)));
    }
    rank->Submit(&entries);
  }

  void Deliver() {
    const auto idle = [](const auto& rank) { return rank->idle(); };
    int rounds = 0;
    while (!std::all_of(ranks_.begin(), ranks_.end(), idle)) {
      if (++rounds > 10) Stop("the ranks do not come to an end");
      for (size_t from = 0; from < ranks_.size(); ++from) {
        for (auto& message : ranks_[from]->Pass()) {
          ranks_[from]->CountSent(message.bytes.size());
          ranks_[message.rank]->Receive(
              {static_cast<int>(from), std::move(message.bytes)});
        }
      }
    }
  }

  void CheckExecuted() {
    const std::vector<int> first = ranks_[0]->executed();
    for (auto& rank : ranks_) {
      if (std::exchange(rank->executed(), {}) != first) {
        Stop("the ranks executed different tensors, or in another order");
      }
    }
    std::vector<int> sorted = first;
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < workload_.tensors; ++i) {
      if (sorted.size() != names_.size() || sorted[i] != i) {
        Stop("not every tensor was executed once");
      }
    }
  }

  Cost MeanOfMembers() {
    Cost sum;
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      const Cost cost = ranks_[rank]->TakeCost();
      sum.messages_in += cost.messages_in;
      sum.messages_out += cost.messages_out;
      sum.bytes_in += cost.bytes_in;
      sum.bytes_out += cost.bytes_out;
      sum.us += cost.us;
      sum.allocations += cost.allocations;
    }
    const double members = static_cast<double>(ranks_.size() - 1);
    return {sum.messages_in / members, sum.messages_out / members,
            sum.bytes_in / members,    sum.bytes_out / members,
            sum.us / members,          sum.allocations / members};
  }

  const Workload workload_;
  std::mt19937_64 random_{1};
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Print(int ranks, const char* step, const StepCost& cost, int tensors) {
  const Cost &leader = cost.leader, &member = cost.member;
  std::printf(
      "%6d %7s %8.0f %10.1f %10.1f %10.0f %7.0f %6.1f %6.0f %8.0f %8.0f %8.1f "
      "%7.0f %6.1f\n",
      ranks, step, leader.messages_in + leader.messages_out,
      leader.bytes_in / 1e3, leader.bytes_out / 1e3, leader.us,
      leader.us * 1e3 / tensors / ranks, leader.allocations / tensors,
      member.messages_in + member.messages_out, member.bytes_out,
      member.bytes_in, member.us, member.us * 1e3 / tensors,
      member.allocations / tensors);
  std::fflush(stdout);
}

void Run(const Workload& workload, int ranks) {
  Job job(workload, ranks);
  Print(ranks, "first", job.Step(), workload.tensors);
  StepCost steady;
  std::vector<double> leader_us, member_us;
  const int steps = std::clamp(8192 / ranks, 12, 600);
  for (int i = 0; i < steps; ++i) {
    steady = job.Step();
    leader_us.push_back(steady.leader.us);
    member_us.push_back(steady.member.us);
  }
  steady.leader.us = Median(leader_us);
  steady.member.us = Median(member_us);
  Print(ranks, "steady", steady, workload.tensors);
}

int Main(const Arguments& arguments) {
  const std::vector<Workload> workloads = {
      {"allreduces, all at once", Verb::kAllreduce, arguments.tensors, 1},
      {"allreduces, in 8 groups", Verb::kAllreduce, arguments.tensors, kGroups},
      {"allgathers, all at once", Verb::kAllgather, kGatheredTensors, 1}};
  for (const Workload& workload : workloads) {
    std::printf(
        "%d %s; a step\n%14s %48s %46s\n%6s %7s %8s %10s %10s %10s %7s %6s "
        "%6s %8s %8s %8s %7s %6s\n",
        workload.tensors, workload.name, "", "leader", "member", "ranks",
        "step", "messages", "kB in", "kB out", "us", "ns/r/t", "new/t", "mess.",
        "B out", "B in", "us", "ns/t", "new/t");
    for (int ranks = arguments.first_ranks; ranks <= arguments.last_ranks;
         ranks *= 2) {
      Run(workload, ranks);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hvd

// Not inline: the compiler must not see a malloc freed by delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++hvd::allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

int main(int argc, char** argv) {
  hvd::Arguments arguments;
  // With a second thread there has been, reference counts and malloc pay for
  // atomic operations, as they do beside TensorFlow.
  std::thread([] {}).join();
  if (argc > 1) arguments.tensors = std::atoi(argv[1]);
  if (argc > 2) arguments.first_ranks = std::atoi(argv[2]);
  if (argc > 3) arguments.last_ranks = std::atoi(argv[3]);
  if (arguments.tensors < static_cast<int>(hvd::kGroups) ||
      arguments.first_ranks < 2 || arguments.last_ranks > hvd::kMostRanks ||
      arguments.first_ranks > arguments.last_ranks) {
    std::fprintf(stderr, "usage: %s [TENSORS] [FIRST_RANKS] [LAST_RANKS]\n",
                 argv[0]);
    return 1;
  }
  return hvd::Main(arguments);
}
