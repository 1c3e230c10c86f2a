// SPDX-License-Identifier: Apache-2.0
// The kernels of FakeNccl, and what they share with its calls.
#ifndef HVD_TESTS_CORE_FAKE_NCCL_KERNEL_H_
#define HVD_TESTS_CORE_FAKE_NCCL_KERNEL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/types.h"
#include "fakes/fake_gpu.h"
#include "transport/cuda/nccl_library.h"
#include "transport/device/communicator_calls.h"

namespace hvd::fake_nccl {

using Doubles = std::vector<double>;
using Kind = CommunicatorCall::Kind;

// Operators from here on are scaled sums: ncclComm::factors.
inline constexpr int kFirstScaledSum = 100;

// What a rank gives to a call, which is `peer`'s if that is a rank.
struct Call {
  Kind kind;
  int peer;
  const void* in;
  void* out;
  size_t count;
  int dtype, op;
  Doubles values;  // that its kernel has read
};

// Calls that are made as one.
struct Group {
  int read = 0;
  std::set<int> done;  // ranks
  std::map<int, std::vector<Call>> of_ranks;
};

// What the ranks of a communicator share.
struct World {
  int size = 0;
  int arrived = 0;
  std::map<int, Group> groups;  // of calls of all ranks
  // Links that a rank has come to, for calls of two or of all: [of two, from,
  // to].
  std::set<std::tuple<bool, int, int>> links;
  // What was sent and not received: [from, to].
  std::map<std::pair<int, int>, std::deque<Doubles>> messages;
};

inline std::mutex mutex;  // of all state, and of the communicators
// See FakeNccl::completed, misfitting and HoldKernels.
inline int completed_groups = 0;
inline int misfits = 0;
inline int kernels_held_on = -1;

DataType TypeOf(int dtype);
Doubles ToDoubles(DataType dtype, const std::vector<unsigned char>& bytes,
                  size_t count);
// Whether two ranks make the call, and not all.
bool IsBetweenTwo(Kind kind);

}  // namespace hvd::fake_nccl

struct ncclComm {
  std::shared_ptr<hvd::fake_nccl::World> world;
  int rank = 0;
  hvd::FakeGpu* gpu = nullptr;  // once it was given work
  int next_group = 0;
  int in_progress = 0;  // times to be asked for before it is ready
  // Where the group was launched and has not begun: puts its kernel on the
  // GPU, and the peers' ends of links that it needs.
  std::function<void()> begin;
  std::set<std::tuple<bool, int, int>> needs;
  int error = hvd::kNcclSuccess;
  bool is_failing = false;  // its kernels do not end
  bool is_aborted = false;
  std::vector<double> factors;  // of scaled sums
};

namespace hvd::fake_nccl {

// The kernel of a rank, as work of its GPU's stream: it reads, waits for the
// other ranks' to have read, and writes. Group `number` of those that all ranks
// make. What two of them do with each other comes last.
FakeGpu::Work NewKernel(std::shared_ptr<ncclComm> comm, FakeGpu* gpu,
                        int number, std::vector<Call> calls);

}  // namespace hvd::fake_nccl

#endif  // HVD_TESTS_CORE_FAKE_NCCL_KERNEL_H_
