// SPDX-License-Identifier: Apache-2.0
// Drives the control plane of 2 to 1024 ranks in one thread, and counts what a
// step costs: messages, bytes, memory, allocations and CPU time, for leader and
// member.
//
// Usage: control_plane [TENSORS] [FIRST_RANKS] [LAST_RANKS] [RANKS_A_HOST]. The
// number of ranks is doubled from the first number to the last. With a last
// argument above 1 they are on hosts of so many ranks, and one rank of each
// gathers its neighbours' reports. Without, all ranks report to the leader.
//
// Negotiators, codec and executors are the production code, and are called as
// the background loop calls them. The network is a queue for each rank. A batch
// is done as soon as it is started. CPU time is that of a rank's passes,
// without sending, receiving and TensorFlow. After every step each rank must
// have executed each tensor once, in the order of rank 0. If not, the program
// ends.
//
// The last rank aborts a step while its tensors wait for rank 1, or for rank 0
// where there are two. The others wait too ("waiting"), or submit after the
// abort: together ("late"), or each in another pass of the leader ("apart").
// Each tensor must then have failed once on each rank, and the next step must
// complete.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "control_plane_job.h"
#include "control_plane_rank.h"

namespace hvd {
namespace {

constexpr int kMostRanks = 1024;
constexpr int kGatheredTensors = 16;
constexpr size_t kGroups = 8;

struct Arguments {
  int tensors = 161;  // ResNet-50's gradients
  int first_ranks = 2;
  int last_ranks = kMostRanks;
  int ranks_a_host = 1;
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
