// SPDX-License-Identifier: Apache-2.0
// The ranks of control_plane.cc, step by step, and the network between them.
#ifndef HVD_BENCHMARKS_CONTROL_PLANE_JOB_H_
#define HVD_BENCHMARKS_CONTROL_PLANE_JOB_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "control_plane_rank.h"
#include "core/control/negotiator.h"
#include "core/host_map.h"

namespace hvd {

struct Workload {
  const char* name;
  Verb verb;
  int tensors;
  size_t groups;  // that come one after another, as in a backward pass
};

struct StepCost {
  Cost leader;
  Cost member;    // the mean of those that gather for nobody
  Cost gatherer;  // the mean
};

// When the other ranks submit the tensors of a step that one aborts.
enum class Others { kWaiting, kLate, kApart };
inline constexpr const char* kOthersNames[] = {"waiting", "late", "apart"};

// A job of several ranks, step by step.
class Job {
 public:
  // The rank that the tensors of a step wait for until the last rank aborts it.
  // With two ranks it is the leader, and nobody else waits.
  static size_t SlowRank(size_t size) { return size > 2 ? 1 : 0; }

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
    const size_t slow = SlowRank(ranks_.size());
    const auto submit = [&](size_t rank) {
      return SubmitGroup(ranks_[rank].get(), steps[rank], 0, names_.size());
    };
    for (auto& rank : ranks_) rank->set_may_fail(true);
    const std::vector<uint64_t> tickets = submit(last);
    if (others == Others::kWaiting) {
      for (size_t rank = 0; rank < last; ++rank) {
        if (rank != slow) submit(rank);
      }
      Deliver();
      TakeCost();  // Step measures the cost of submissions
    }
    ranks_[last]->Abort(tickets);
    Deliver();
    for (size_t rank = 0; rank < last; ++rank) {
      if (others == Others::kWaiting && rank != slow) continue;
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

  // The mean of the ranks behind the leader that gather for others, or do not.
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

}  // namespace hvd

#endif  // HVD_BENCHMARKS_CONTROL_PLANE_JOB_H_
