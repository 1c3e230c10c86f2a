// SPDX-License-Identifier: Apache-2.0
// Drives the control plane of 2 to 1024 ranks in one thread, and counts what a
// step costs: messages, bytes, memory, allocations and CPU time, for leader and
// member.
//
// Usage: control_plane [TENSORS] [FIRST_RANKS] [LAST_RANKS] [RANKS_A_HOST]. The
// number of ranks is doubled from the first number to the last. With a last
// argument above 1 they are on hosts of so many ranks, and one rank of each
// gathers its neighbours' reports. Without, all ranks report to the leader.
// Negotiators, codec and
// executors are the production code, and are called as the background loop
// calls them. The network is a queue for each rank. A batch is done as soon as
// it is started. CPU time is that of a rank's passes, without sending,
// receiving and TensorFlow. After every step each rank must have executed each
// tensor once, in the order of rank 0. If not, the program ends.
//
// The last rank aborts a step while its tensors wait for rank 1. The others
// wait too ("waiting"), or submit after the abort: together ("late"), or each
// in another pass of the leader ("apart"). Each tensor must then have failed
// once on each rank, and the next step must complete.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "core/executor.h"
#include "core/host_map.h"
#include "core/options.h"

namespace hvd {
namespace {

int64_t allocations = 0;
int64_t live_bytes = 0;
int64_t peak_bytes = 0;  // the most live_bytes since a Meter began

constexpr int kMostRanks = 1024;
constexpr int kGatheredTensors = 16;
constexpr size_t kSlowRank = 1;
constexpr size_t kGroups = 8;

struct Arguments {
  int tensors = 161;  // ResNet-50's gradients
  int first_ranks = 2;
  int last_ranks = kMostRanks;
  int ranks_a_host = 1;
};

struct Workload {
  const char* name;
  Verb verb;
  int tensors;
  size_t groups;  // that come one after another, as in a backward pass
};

// The costs of one rank in one step.
struct Cost {
  double messages_in = 0, messages_out = 0;
  double bytes_in = 0, bytes_out = 0;
  double us = 0;
  double allocations = 0;
  double most_bytes = 0;  // the most memory that one pass has added
};

double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) / 1e3;
}

// Measures CPU time and allocations during its life, and adds them to a Cost.
class Meter {
 public:
  explicit Meter(Cost* cost)
      : cost_(cost),
        before_(allocations),
        bytes_before_(peak_bytes = live_bytes),
        begin_us_(CpuMicroseconds()) {}
  ~Meter() {
    cost_->us += CpuMicroseconds() - begin_us_;
    cost_->allocations += static_cast<double>(allocations - before_);
    cost_->most_bytes = std::max(
        cost_->most_bytes, static_cast<double>(peak_bytes - bytes_before_));
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

 private:
  Cost* const cost_;
  const int64_t before_;
  const int64_t bytes_before_;
  const double begin_us_;
};

[[noreturn]] void Stop(const std::string& text) {
  std::fprintf(stderr, "control_plane: %s\n", text.c_str());
  std::exit(1);
}

void StopUnlessOk(const Status& status) {
  if (!status.ok()) Stop(status.message());
}

// Moves nothing. A batch is done at the next Progress.
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
  SharedBytes bytes;
};

// One rank's background thread.
class Rank {
 public:
  Rank(int rank, const std::vector<int>& ranks, const HostMap& hosts)
      : executor_(LaneTable::HostOnly(std::make_unique<InstantTransport>(
            rank, static_cast<int>(ranks.size())))),
        negotiator_(0, rank, ranks, Options::Defaults(),
                    executor_.chunk_limits().most_bytes, hosts) {}

  // When the entry is done, `index` is added to executed().
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
      entry->allocate = [](const std::vector<Shape>&, const RankCounts&,
                           std::vector<void*>* outputs) {
        *outputs = {nullptr};
        return Status::Ok();
      };
    }
    entry->done = [this, index](const Status& status) {
      if (!may_fail_) StopUnlessOk(status);
      (status.ok() ? executed_ : failed_).push_back(index);
    };
    return entry;
  }

  // Cancels all that a step has submitted, like TensorFlow's cancellation
  // manager.
  void Abort(const std::vector<uint64_t>& tickets) {
    Meter meter(&cost_);
    is_rung_ = true;
    for (uint64_t ticket : tickets) {
      negotiator_.Cancel(ticket, Cancelled("NaN in the loss of this step"));
    }
  }

  void Submit(std::vector<EntryPtr>* entries) {
    Meter meter(&cost_);
    is_rung_ = true;
    for (EntryPtr& entry : *entries) negotiator_.Submit(std::move(entry));
  }

  // Like BackgroundLoop::Pass.
  std::vector<OutgoingMessage> Pass() {
    std::vector<Letter> letters = std::exchange(inbox_, {});
    cost_.messages_in += static_cast<double>(letters.size());
    Meter meter(&cost_);
    const auto now = Negotiator::Clock::now() + skipped_time_;
    for (Letter& letter : letters) {
      Result<Envelope> envelope = Decode(*letter.bytes);
      StopUnlessOk(envelope.status());
      Message& message = envelope.value().message;
      if (const auto* report = std::get_if<Report>(&message)) {
        StopUnlessOk(negotiator_.HandleReport(letter.from, *report, now));
      } else if (auto* host = std::get_if<HostReport>(&message)) {
        StopUnlessOk(
            negotiator_.HandleHostReport(letter.from, std::move(*host), now));
      } else {
        StopUnlessOk(negotiator_.HandleLog(std::get<LogMessage>(message)));
      }
    }
    StopUnlessOk(negotiator_.Advance(executor_.in_flight(), now).status());
    while (std::optional<ReadyItem> item = negotiator_.TakeReady()) {
      executor_.Execute(std::get<ReadyBatch>(std::move(*item)));
    }
    auto messages = negotiator_.TakeMessages();
    is_rung_ = executor_.Progress() || !messages.empty();
    return messages;
  }

  void Receive(Letter letter) {
    cost_.bytes_in += static_cast<double>(letter.bytes->size());
    inbox_.push_back(std::move(letter));
    is_rung_ = true;
  }
  // Whether its thread must wake up.
  bool is_rung() const { return is_rung_; }
  // Until it has something to do though nothing comes.
  void SkipTime() {
    if (!negotiator_.due().has_value()) return;
    skipped_time_ += 2 * ReportGatherer::kLongestHold;
    is_rung_ = true;
  }
  void CountSent(size_t bytes) {
    cost_.messages_out += 1;
    cost_.bytes_out += static_cast<double>(bytes);
  }

  Cost TakeCost() { return std::exchange(cost_, {}); }
  std::vector<int>& executed() { return executed_; }
  std::vector<int>& failed() { return failed_; }
  void set_may_fail(bool may_fail) { may_fail_ = may_fail; }
  bool idle() const { return negotiator_.idle() && inbox_.empty(); }

 private:
  Executor executor_;
  Negotiator negotiator_;
  std::vector<Letter> inbox_;
  std::vector<int> executed_, failed_;
  bool may_fail_ = false;
  bool is_rung_ = false;
  Negotiator::Clock::duration skipped_time_{};
  uint64_t last_ticket_ = 0;
  Cost cost_;
};

struct StepCost {
  Cost leader;
  Cost member;    // the mean of those that gather for nobody
  Cost gatherer;  // the mean
};

// When the other ranks submit the tensors of a step that one aborts.
enum class Others { kWaiting, kLate, kApart };
constexpr const char* kOthersNames[] = {"waiting", "late", "apart"};

// A job of several ranks, step by step.
class Job {
 public:
  Job(const Workload& workload, int size, int ranks_a_host)
      : workload_(workload), ranks_a_host_(ranks_a_host) {
    std::vector<int> ranks, hosts;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(rank);
      hosts.push_back(rank / ranks_a_host);
    }
    const HostMap map = MakeHostMap(hosts);
    for (int rank : ranks) {
      ranks_.push_back(std::make_unique<Rank>(rank, ranks, map));
    }
    for (int i = 0; i < workload.tensors; ++i) {
      names_.push_back("DistributedMomentum/gradient/stage_block_conv/kernel_" +
                       std::to_string(i));
    }
  }

  StepCost Step() {
    const std::vector<int64_t> steps = NewSteps();
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
    return TakeCost();
  }

  StepCost AbortedStep(Others others) {
    const std::vector<int64_t> steps = NewSteps();
    const size_t last = ranks_.size() - 1;
    const auto submit = [&](size_t rank) {
      return SubmitGroup(ranks_[rank].get(), steps[rank], 0, names_.size());
    };
    for (auto& rank : ranks_) rank->set_may_fail(true);
    const std::vector<uint64_t> tickets = submit(last);
    if (others == Others::kWaiting) {
      for (size_t rank = 0; rank < last; ++rank) {
        if (rank != kSlowRank) submit(rank);
      }
      Deliver();
      TakeCost();  // Step measures the cost of submissions
    }
    ranks_[last]->Abort(tickets);
    Deliver();
    for (size_t rank = 0; rank < last; ++rank) {
      if (others == Others::kWaiting && rank != kSlowRank) continue;
      submit(rank);
      if (others == Others::kApart) Deliver();
    }
    Deliver();
    // What some ranks of a host have submitted, and others will not, is held.
    for (auto& rank : ranks_) rank->SkipTime();
    Deliver();
    for (auto& rank : ranks_) rank->set_may_fail(false);
    CheckFailed();
    const StepCost cost = TakeCost();
    Step();
    return cost;
  }

 private:
  // Step numbers as of a tf.function: every rank has its own random number.
  std::vector<int64_t> NewSteps() {
    std::vector<int64_t> steps;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      steps.push_back(-static_cast<int64_t>(random_() >> 1));
    }
    return steps;
  }

  StepCost TakeCost() {
    StepCost cost;
    cost.leader = ranks_[0]->TakeCost();
    cost.gatherer = MeanOf(true);
    cost.member = MeanOf(false);
    return cost;
  }

  // Submits in an order of the rank's own. Returns the tickets.
  std::vector<uint64_t> SubmitGroup(Rank* rank, int64_t step, size_t begin,
                                    size_t end) {
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
    std::vector<uint64_t> tickets;
    for (const EntryPtr& entry : entries) tickets.push_back(entry->ticket);
    rank->Submit(&entries);
    return tickets;
  }

  // Delivers messages until nothing is under way.
  void Deliver() {
    int rounds = 0;
    for (bool moved = true; moved;) {
      moved = false;
      if (++rounds > 10) Stop("the ranks do not come to an end");
      for (size_t from = 0; from < ranks_.size(); ++from) {
        if (!ranks_[from]->is_rung()) continue;
        for (auto& message : ranks_[from]->Pass()) {
          moved = true;
          ranks_[from]->CountSent(message.bytes->size());
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

  void CheckFailed() {
    for (auto& rank : ranks_) {
      std::vector<int> failed = std::exchange(rank->failed(), {});
      std::sort(failed.begin(), failed.end());
      for (int i = 0; i < workload_.tensors; ++i) {
        if (failed.size() != names_.size() || failed[i] != i) {
          Stop("not every tensor of an aborted step has failed once");
        }
      }
    }
  }

  // Of the ranks behind the leader that gather for others, or that do not.
  Cost MeanOf(bool gatherers) {
    Cost sum;
    double members = 0;
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      const bool gathers = ranks_a_host_ > 1 && rank % ranks_a_host_ == 0;
      if (gathers != gatherers) continue;
      ++members;
      const Cost cost = ranks_[rank]->TakeCost();
      sum.messages_in += cost.messages_in;
      sum.messages_out += cost.messages_out;
      sum.bytes_in += cost.bytes_in;
      sum.bytes_out += cost.bytes_out;
      sum.us += cost.us;
      sum.allocations += cost.allocations;
      sum.most_bytes += cost.most_bytes;
    }
    if (members == 0) return {};
    return {sum.messages_in / members, sum.messages_out / members,
            sum.bytes_in / members,    sum.bytes_out / members,
            sum.us / members,          sum.allocations / members,
            sum.most_bytes / members};
  }

  const Workload workload_;
  const size_t ranks_a_host_;
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

void Run(const Workload& workload, int ranks, int ranks_a_host) {
  Job job(workload, ranks, ranks_a_host);
  Print(ranks, "first", job.Step(), workload.tensors);
  StepCost steady;
  std::vector<double> leader_us, member_us, gatherer_us;
  const int steps = std::clamp(8192 / ranks, 12, 600);
  for (int i = 0; i < steps; ++i) {
    steady = job.Step();
    leader_us.push_back(steady.leader.us);
    member_us.push_back(steady.member.us);
    gatherer_us.push_back(steady.gatherer.us);
  }
  steady.leader.us = Median(leader_us);
  steady.member.us = Median(member_us);
  Print(ranks, "steady", steady, workload.tensors);
  if (ranks_a_host == 1 || ranks <= ranks_a_host) return;
  const Cost& gatherer = steady.gatherer;
  std::printf("%14s %8.0f %10.1f %10.1f %10.0f\n", "a gatherer",
              gatherer.messages_in + gatherer.messages_out,
              gatherer.bytes_in / 1e3, gatherer.bytes_out / 1e3,
              Median(gatherer_us));
  std::fflush(stdout);
}

void RunAborted(int tensors, int ranks, int ranks_a_host) {
  const Workload workload = {"", Verb::kAllreduce, tensors, 1};
  for (const Others others :
       {Others::kWaiting, Others::kLate, Others::kApart}) {
    Job job(workload, ranks, ranks_a_host);
    job.Step();
    const StepCost cost = job.AbortedStep(others);
    const Cost &leader = cost.leader, &member = cost.member;
    std::printf("%6d %8s %9.0f %10.1f %9.2f %9.2f %8.1f %9.1f %9.1f\n", ranks,
                kOthersNames[static_cast<int>(others)],
                leader.messages_in + leader.messages_out,
                leader.bytes_out / 1e3, leader.us / 1e3,
                leader.most_bytes / 1e6, member.messages_in,
                member.bytes_in / 1e3, member.us / 1e3);
    std::fflush(stdout);
  }
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
      Run(workload, ranks, arguments.ranks_a_host);
    }
  }
  std::printf(
      "an aborted step of %d allreduces\n%15s %40s %28s\n%6s %8s %9s %10s %9s "
      "%9s %8s %9s %9s\n",
      arguments.tensors, "", "leader", "member", "ranks", "others", "messages",
      "kB out", "ms", "peak MB", "messages", "kB in", "ms");
  for (int ranks = arguments.first_ranks; ranks <= arguments.last_ranks;
       ranks *= 2) {
    RunAborted(arguments.tensors, ranks, arguments.ranks_a_host);
  }
  return 0;
}

}  // namespace
}  // namespace hvd

// Not inline, because the compiler must not see that delete frees memory of
// malloc.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++hvd::allocations;
  hvd::live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  hvd::peak_bytes = std::max(hvd::peak_bytes, hvd::live_bytes);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  hvd::live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

int main(int argc, char** argv) {
  hvd::Arguments arguments;
  // Once there was a second thread, reference counts and malloc use atomic
  // operations, as they do beside TensorFlow.
  std::thread([] {}).join();
  if (argc > 1) arguments.tensors = std::atoi(argv[1]);
  if (argc > 2) arguments.first_ranks = std::atoi(argv[2]);
  if (argc > 3) arguments.last_ranks = std::atoi(argv[3]);
  if (argc > 4) arguments.ranks_a_host = std::atoi(argv[4]);
  if (arguments.tensors < static_cast<int>(hvd::kGroups) ||
      arguments.first_ranks < 2 || arguments.last_ranks > hvd::kMostRanks ||
      arguments.first_ranks > arguments.last_ranks ||
      arguments.ranks_a_host < 1) {
    std::fprintf(stderr,
                 "usage: %s [TENSORS] [FIRST_RANKS] [LAST_RANKS] "
                 "[RANKS_A_HOST]\n",
                 argv[0]);
    return 1;
  }
  return hvd::Main(arguments);
}
