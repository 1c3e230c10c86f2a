// SPDX-License-Identifier: Apache-2.0
// Times the shared-memory allreduce without TensorFlow. Beside it stand a copy
// of the same bytes and a window that only spins: what the memory allows.
//
// Usage: host_allreduce [RANKS] [PIECE_KB] [ARENA_MB]. The ranks are child
// processes. Everything is measured in turns within one run. The figures are
// medians of the mean over the ranks. "in" is in place, "out" into another
// buffer. "checked" is in place, and looks for NaN and infinity.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/spin_time.h"
#include "transport/collectives/staged_transport.h"
#include "transport/shm/shm_doorbell.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/shm_host.h"
#include "transport/shm/shm_segment.h"
#include "transport/shm/shm_wire.h"

namespace hvd {
namespace {

constexpr size_t kSlots = 4;
constexpr int kMostRanks = 64;

struct Arguments {
  int ranks = 2;
  int64_t chunk_bytes = 256 << 10;
  size_t arena_bytes = 8 << 20;
};

// The counters of the spinning window and of the barrier, in shared memory.
struct Counters {
  alignas(64) std::atomic<int64_t> packed;
  alignas(64) std::atomic<int64_t> reduced;
  alignas(64) std::atomic<int64_t> unpacked;
  alignas(64) std::atomic<int64_t> barriers;
  alignas(64) std::atomic<double> seconds;
};

void WaitFor(const std::atomic<int64_t>& counter, int64_t least) {
  while (counter.load(std::memory_order_acquire) < least) {
  }
}

template <typename T>
T* SharedZeros(size_t count) {
  void* memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(2);
  return static_cast<T*>(memory);
}

// The least that an allreduce in place can do. Chunks go through a window of
// slots. Each rank has three counters, and no rank ever sleeps.
class SpinningWindow {
 public:
  SpinningWindow(Counters* counters, float* slots, size_t chunk, int rank,
                 int ranks)
      : counters_(counters),
        slots_(slots),
        chunk_(chunk),
        rank_(rank),
        ranks_(ranks) {}

  void Allreduce(float* data, size_t count) {
    const size_t chunks = (count + chunk_ - 1) / chunk_;
    for (size_t k = 0; k < chunks + 2; ++k) {
      if (k < chunks) Pack(data, count, k);
      if (k >= 1 && k - 1 < chunks) Reduce(data, count, k - 1);
      if (k >= 2) Unpack(data, count, k - 2);
    }
    done_ += static_cast<int64_t>(chunks);
  }

 private:
  float* Slot(int rank, int64_t k) const {
    return slots_ + (static_cast<size_t>(rank) * kSlots +
                     static_cast<size_t>(k) % kSlots) *
                        chunk_;
  }
  // The part of a chunk of `length` that `owner` sums up.
  size_t Begin(size_t length, int owner) const {
    return owner == ranks_ ? length
                           : length * static_cast<size_t>(owner) /
                                 static_cast<size_t>(ranks_) / 16 * 16;
  }
  size_t Length(size_t count, size_t k) const {
    return std::min(chunk_, count - k * chunk_);
  }

  void Pack(const float* data, size_t count, size_t k) {
    const int64_t number = done_ + static_cast<int64_t>(k);
    const size_t length = Length(count, k);
    for (int peer = 0; peer < ranks_; ++peer) {
      WaitFor(counters_[peer].unpacked,
              number - static_cast<int64_t>(kSlots) + 1);
    }
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const size_t begin = Begin(length, peer), end = Begin(length, peer + 1);
      std::memcpy(Slot(rank_, number) + begin, data + k * chunk_ + begin,
                  (end - begin) * sizeof(float));
    }
    counters_[rank_].packed.store(number + 1, std::memory_order_release);
  }

  void Reduce(float* data, size_t count, size_t k) {
    const int64_t number = done_ + static_cast<int64_t>(k);
    const size_t length = Length(count, k);
    const size_t begin = Begin(length, rank_), end = Begin(length, rank_ + 1);
    float* const mine = data + k * chunk_;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      WaitFor(counters_[peer].packed, number + 1);
      const float* const theirs = Slot(peer, number);
      for (size_t i = begin; i < end; ++i) mine[i] += theirs[i];
    }
    std::memcpy(Slot(rank_, number) + begin, mine + begin,
                (end - begin) * sizeof(float));
    counters_[rank_].reduced.store(number + 1, std::memory_order_release);
  }

  void Unpack(float* data, size_t count, size_t k) {
    const int64_t number = done_ + static_cast<int64_t>(k);
    const size_t length = Length(count, k);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      WaitFor(counters_[peer].reduced, number + 1);
      const size_t begin = Begin(length, peer), end = Begin(length, peer + 1);
      std::memcpy(data + k * chunk_ + begin, Slot(peer, number) + begin,
                  (end - begin) * sizeof(float));
    }
    counters_[rank_].unpacked.store(number + 1, std::memory_order_release);
  }

  Counters* const counters_;
  float* const slots_;
  const size_t chunk_;
  const int rank_, ranks_;
  int64_t done_ = 0;
};

// One rank: its transport, and the copy and window that it is compared with.
class Rank {
 public:
  Rank(const Arguments& arguments, std::shared_ptr<ShmHost> host,
       Counters* counters, float* slots, int rank)
      : arguments_(arguments),
        counters_(counters),
        rank_(rank),
        bell_(host->doorbell(rank), host->segment()),
        endpoint_(std::make_shared<ShmEndpoint>(host, rank)),
        window_(counters, slots,
                static_cast<size_t>(arguments.chunk_bytes) / sizeof(float),
                rank, arguments.ranks) {
    std::vector<int> ranks;
    for (int peer = 0; peer < arguments.ranks; ++peer) ranks.push_back(peer);
    StagingBuffer reserve = endpoint_->arena().Take(
        static_cast<size_t>(arguments.chunk_bytes) + 65536, Urgency::kOldest);
    transport_ = std::make_unique<StagedTransport>(
        std::make_unique<ShmWire>(endpoint_, 0, ranks, rank,
                                  std::move(reserve)),
        ranks, HeapChunks(arguments.chunk_bytes));
  }

  void Measure(size_t bytes) {
    const size_t count = bytes / sizeof(float);
    std::vector<float> in(count, 1.0F), out(count, 0.0F);
    CheckOnce(&in, &out);
    std::fill(in.begin(), in.end(), 0.0F);  // so that sums stay the same
    const std::vector<std::function<void()>> calls = {
        [&] { Allreduce(in.data(), in.data(), count); },
        [&] { Allreduce(in.data(), out.data(), count); },
        [&] { Allreduce(in.data(), in.data(), count, true); },
        [&] { window_.Allreduce(in.data(), count); },
        [&] { std::memcpy(out.data(), in.data(), bytes); }};
    std::vector<std::vector<double>> seconds(calls.size());
    const int rounds = bytes > (size_t{8} << 20) ? 25 : 200;
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < calls.size(); ++i) {
        const double mean = MeanSeconds(calls[i]);
        if (round >= rounds / 10) seconds[i].push_back(mean);
      }
    }
    if (rank_ == 0) Report(bytes, &seconds);
  }

 private:
  void Allreduce(const float* in, float* out, size_t count,
                 bool check_finite = false) {
    Batch batch;
    batch.check_finite = check_finite;
    batch.segments.push_back({in, out, static_cast<int64_t>(count)});
    bool done = false;
    transport_->Start(std::move(batch), [&](const Status& status) {
      if (!status.ok()) std::exit(3);
      done = true;
    });
    while (!done || transport_->in_flight() > 0) {
      if (!transport_->Progress()) {
        bell_.Wait(std::chrono::milliseconds(100), spin_);
      }
    }
  }

  void CheckOnce(std::vector<float>* in, std::vector<float>* out) {
    Allreduce(in->data(), out->data(), in->size());
    window_.Allreduce(in->data(), in->size());
    const auto wrong = [&](float value) {
      return value != static_cast<float>(arguments_.ranks);
    };
    if (std::any_of(out->begin(), out->end(), wrong) ||
        std::any_of(in->begin(), in->end(), wrong)) {
      std::fprintf(stderr, "wrong sums\n");
      std::exit(4);
    }
  }

  void Barrier() {
    ++barriers_;
    counters_[rank_].barriers.store(barriers_, std::memory_order_release);
    for (int peer = 0; peer < arguments_.ranks; ++peer) {
      WaitFor(counters_[peer].barriers, barriers_);
    }
  }

  double MeanSeconds(const std::function<void()>& call) {
    Barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    counters_[rank_].seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    Barrier();
    double sum = 0;
    for (int peer = 0; peer < arguments_.ranks; ++peer) {
      sum += counters_[peer].seconds;
    }
    return sum / arguments_.ranks;
  }

  void Report(size_t bytes, std::vector<std::vector<double>>* seconds) {
    std::vector<double> us;
    for (std::vector<double>& all : *seconds) {
      std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
      us.push_back(all[all.size() / 2] * 1e6);
    }
    std::printf("%10zu %11.1f %11.1f %11.1f %11.1f %11.1f %9.2f %9.2f %10.3f\n",
                bytes, us[0], us[1], us[2], us[3], us[4], us[3] / us[0],
                us[3] / us[1], us[2] / us[0]);
    std::fflush(stdout);
  }

  const Arguments arguments_;
  Counters* const counters_;
  const int rank_;
  ShmDoorbell bell_;
  const std::chrono::microseconds spin_ = SpinTime(0);
  std::shared_ptr<ShmEndpoint> endpoint_;
  SpinningWindow window_;
  std::unique_ptr<StagedTransport> transport_;
  int64_t barriers_ = 0;
};

void Run(const Arguments& arguments, const std::shared_ptr<ShmHost>& host,
         Counters* counters, float* slots, int rank) {
  Rank self(arguments, host, counters, slots, rank);
  if (rank == 0) {
    std::printf(
        "%d ranks, chunks of %ld KB; microseconds\n%10s %11s %11s "
        "%11s %11s %11s %9s %9s %10s\n",
        arguments.ranks, static_cast<long>(arguments.chunk_bytes >> 10),
        "bytes", "ours in", "ours out", "checked", "window in", "memcpy",
        "window/in", "/out", "checked/in");
  }
  for (size_t bytes : {size_t{4}, size_t{4} << 10, size_t{64} << 10,
                       size_t{1} << 20, size_t{4} << 20, size_t{16} << 20,
                       size_t{64} << 20, size_t{102} << 20}) {
    self.Measure(bytes);
  }
}

int Main(const Arguments& arguments) {
  auto segment = ShmSegment::Create(
      ShmHost::BytesFor(arguments.ranks, arguments.arena_bytes));
  if (!segment.ok()) {
    std::fprintf(stderr, "%s\n", segment.status().message().c_str());
    return 1;
  }
  segment.value()->Unlink();
  auto host = std::make_shared<ShmHost>(segment.value(), arguments.ranks,
                                        arguments.arena_bytes);
  auto* counters = SharedZeros<Counters>(static_cast<size_t>(arguments.ranks));
  auto* slots =
      SharedZeros<float>(static_cast<size_t>(arguments.ranks) * kSlots *
                         arguments.chunk_bytes / sizeof(float));
  std::vector<pid_t> children;
  for (int rank = 1; rank < arguments.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      Run(arguments, host, counters, slots, rank);
      _exit(0);
    }
    children.push_back(child);
  }
  Run(arguments, host, counters, slots, 0);
  int failures = 0;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failures += status != 0;
  }
  return failures;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  hvd::Arguments arguments;
  if (argc > 1) arguments.ranks = std::atoi(argv[1]);
  if (argc > 2) arguments.chunk_bytes = std::atoll(argv[2]) << 10;
  if (argc > 3)
    arguments.arena_bytes = std::strtoull(argv[3], nullptr, 10) << 20;
  if (arguments.ranks < 1 || arguments.ranks > hvd::kMostRanks ||
      arguments.chunk_bytes < 1024 || arguments.arena_bytes < (1 << 20)) {
    std::fprintf(stderr, "usage: %s [RANKS] [PIECE_KB] [ARENA_MB]\n", argv[0]);
    return 1;
  }
  return hvd::Main(arguments);
}
