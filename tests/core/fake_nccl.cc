// SPDX-License-Identifier: Apache-2.0
// The calls of nccl.h, and the faults that tests ask for.
#include "fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_nccl_kernel.h"
#include "fakes/fake_gpu.h"
#include "transport/cuda/nccl_library.h"

namespace {

using namespace hvd::fake_nccl;
using hvd::DataType;
using hvd::FakeGpu;

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
// What is begun is ready when it is asked for the third time.
constexpr int kAsked = 3;

std::map<std::string, std::shared_ptr<World>> worlds;
int next_identity = 0;
int early_ends = 0;
std::map<Kind, int> calls_launched;
std::map<int, int> groups_launched;  // by rank
std::condition_variable group_is_launched;
bool connect_is_held = false, links_are_held = false;
std::set<int> released;
int connect_fails_on = -1, launch_fails_on = -1, async_fails_on = -1;
int links_fail_on = -1, trials_fail_on = -1;
int abort_waits_on = -1;
constexpr std::chrono::seconds kLongestAbort{30};
// Kernels that have not ended, by GPU.
using Count = std::shared_ptr<std::atomic<int>>;
std::map<FakeGpu*, Count> running;

// Kernels may outlive the handle.
std::map<ncclComm*, std::shared_ptr<ncclComm>> communicators;

struct OpenGroup {
  int depth = 0;
  std::shared_ptr<ncclComm> comm;
  FakeGpu::Stream* stream = nullptr;
  std::vector<Call> calls;
};
thread_local OpenGroup open_group;

int GetVersion(int* version) {
  *version = 22707;
  return hvd::kNcclSuccess;
}

int NewId(hvd::NcclId* id) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  const std::string text = "world " + std::to_string(++next_identity);
  std::memcpy(id->bytes, text.data(), text.size());
  return hvd::kNcclSuccess;
}

int Connect(ncclComm** comm, int size, hvd::NcclId id, int rank,
            hvd::NcclConfig* config) {
  if (config->blocking != 0 || id.bytes[0] == '\0') return kInvalidArgument;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<World>& world =
      worlds[std::string(id.bytes, sizeof(id.bytes))];
  if (world == nullptr) world = std::make_shared<World>();
  world->size = size;
  ++world->arrived;
  auto made = std::make_shared<ncclComm>();
  made->world = world;
  made->rank = rank;
  made->in_progress = kAsked;
  *comm = made.get();
  communicators[made.get()] = std::move(made);
  return hvd::kNcclInProgress;
}

// Begins what was launched, if its links are there.
bool Begin(ncclComm* comm) {
  if (comm->begin == nullptr) return true;
  if (links_fail_on == comm->rank && !comm->needs.empty()) {
    comm->error = kSystemError;
    return true;
  }
  const auto& links = comm->world->links;
  if (links_are_held ||
      !std::includes(links.begin(), links.end(), comm->needs.begin(),
                     comm->needs.end())) {
    return false;
  }
  comm->needs.clear();
  std::exchange(comm->begin, nullptr)();
  ++groups_launched[comm->rank];
  group_is_launched.notify_all();
  return true;
}

int GetAsyncError(ncclComm* comm, int* error) {
  const std::lock_guard<std::mutex> lock(mutex);
  *error = hvd::kNcclInProgress;
  if ((connect_is_held && released.count(comm->rank) == 0) ||
      comm->world->arrived < comm->world->size) {
    return hvd::kNcclSuccess;
  }
  if (comm->in_progress > 0 && --comm->in_progress > 0) {
    return hvd::kNcclSuccess;
  }
  if (!Begin(comm)) return hvd::kNcclSuccess;
  if (connect_fails_on == comm->rank) comm->error = kSystemError;
  *error = comm->error;
  return hvd::kNcclSuccess;
}

int Abort(ncclComm* comm) {
  Count to_end;
  std::unique_lock<std::mutex> lock(mutex);
  comm->is_aborted = true;
  const auto never = std::exchange(comm->begin, nullptr);
  if (abort_waits_on == comm->rank) to_end = running[comm->gpu];
  for (const auto& [number, group] : comm->world->groups) {
    if (group.done.count(comm->rank) > 0) ++early_ends;
  }
  for (const auto& [way, messages] : comm->world->messages) {
    if (way.first == comm->rank && !messages.empty()) ++early_ends;
  }
  communicators.erase(comm);
  lock.unlock();
  const auto limit = std::chrono::steady_clock::now() + kLongestAbort;
  while (to_end != nullptr && *to_end > 0 &&
         std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return hvd::kNcclSuccess;
}

// This rank's ends are there from now on.
void NeedLinks(ncclComm* comm, const std::vector<Call>& calls) {
  const auto need = [&](bool of_two, int peer) {
    comm->world->links.insert({of_two, comm->rank, peer});
    comm->needs.insert({of_two, peer, comm->rank});
  };
  for (const Call& call : calls) {
    if (IsBetweenTwo(call.kind)) {
      need(true, call.peer);
    } else {
      for (int peer = 0; peer < comm->world->size; ++peer) need(false, peer);
    }
  }
}

int Launch() {
  OpenGroup group = std::exchange(open_group, OpenGroup());
  if (group.comm == nullptr) return hvd::kNcclSuccess;
  const std::lock_guard<std::mutex> lock(mutex);
  ncclComm& comm = *group.comm;
  if (launch_fails_on == comm.rank) {
    launch_fails_on = -1;
    return kSystemError;
  }
  if (trials_fail_on == comm.rank && comm.next_group == 0) return kSystemError;
  if (async_fails_on == comm.rank) {
    comm.is_failing = true;
    comm.error = hvd::kNcclRemoteError;
  }
  comm.in_progress = links_fail_on == comm.rank ? 1 : kAsked;
  NeedLinks(&comm, group.calls);
  // Those who have no part in an exchange do not count it.
  const bool is_of_all =
      std::any_of(group.calls.begin(), group.calls.end(),
                  [](const Call& call) { return !IsBetweenTwo(call.kind); });
  const int number = is_of_all ? comm.next_group++ : -1;
  for (const Call& call : group.calls) calls_launched[call.kind] += number != 0;
  comm.gpu = group.stream->gpu;
  Count& count = running[comm.gpu];
  if (count == nullptr) count = std::make_shared<std::atomic<int>>(0);
  ++*count;
  const std::shared_ptr<void> until_it_ends(nullptr,
                                            [count](void*) { --*count; });
  auto kernel = NewKernel(group.comm, comm.gpu, number, std::move(group.calls));
  comm.begin = [gpu = comm.gpu, stream = group.stream,
                kernel = std::move(kernel), until_it_ends] {
    gpu->Queue(stream, [kernel, until_it_ends] { return kernel(); });
  };
  return hvd::kNcclInProgress;
}

int BeginGroup() {
  ++open_group.depth;
  return hvd::kNcclSuccess;
}

int EndGroup() { return --open_group.depth > 0 ? hvd::kNcclSuccess : Launch(); }

int Make(Call call, ncclComm* comm, CUstream_st* stream) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    // Not to be called while it is in progress.
    if (comm->in_progress > 0) return kInvalidArgument;
    if (call.peer < 0 || call.peer >= comm->world->size)
      return kInvalidArgument;
    open_group.comm = communicators.at(comm);
  }
  open_group.stream = reinterpret_cast<FakeGpu::Stream*>(stream);
  open_group.calls.push_back(std::move(call));
  return open_group.depth > 0 ? hvd::kNcclSuccess : Launch();
}

int Allreduce(const void* in, void* out, size_t count, int dtype, int op,
              ncclComm* comm, CUstream_st* stream) {
  return Make({Kind::kAllreduce, 0, in, out, count, dtype, op, {}}, comm,
              stream);
}

int ReduceScatter(const void* in, void* out, size_t count, int dtype, int op,
                  ncclComm* comm, CUstream_st* stream) {
  return Make({Kind::kReducescatter, 0, in, out, count, dtype, op, {}}, comm,
              stream);
}

int Reduce(const void* in, void* out, size_t count, int dtype, int op, int root,
           ncclComm* comm, CUstream_st* stream) {
  return Make({Kind::kReduce, root, in, out, count, dtype, op, {}}, comm,
              stream);
}

int Broadcast(const void* in, void* out, size_t count, int dtype, int root,
              ncclComm* comm, CUstream_st* stream) {
  return Make({Kind::kBroadcast, root, in, out, count, dtype, 0, {}}, comm,
              stream);
}

int AllGather(const void* in, void* out, size_t count, int dtype,
              ncclComm* comm, CUstream_st* stream) {
  return Make({Kind::kAllgather, 0, in, out, count, dtype, 0, {}}, comm,
              stream);
}

int Send(const void* in, size_t count, int dtype, int peer, ncclComm* comm,
         CUstream_st* stream) {
  return Make({Kind::kSend, peer, in, nullptr, count, dtype, 0, {}}, comm,
              stream);
}

int Recv(void* out, size_t count, int dtype, int peer, ncclComm* comm,
         CUstream_st* stream) {
  return Make({Kind::kReceive, peer, nullptr, out, count, dtype, 0, {}}, comm,
              stream);
}

int NewScaledSum(int* op, void* scalar, int dtype, int residence,
                 ncclComm* comm) {
  const DataType type = TypeOf(dtype);
  if (residence != hvd::kNcclScalarOfHost || !hvd::IsFloating(type)) {
    return kInvalidArgument;
  }
  const auto* const begin = static_cast<const unsigned char*>(scalar);
  const std::lock_guard<std::mutex> lock(mutex);
  comm->factors.push_back(
      ToDoubles(type, {begin, begin + hvd::SizeOf(type)}, 1)[0]);
  *op = kFirstScaledSum + static_cast<int>(comm->factors.size()) - 1;
  return hvd::kNcclSuccess;
}

const char* TextOfError(int result) {
  return result == kSystemError            ? "unhandled system error"
         : result == hvd::kNcclRemoteError ? "remote process exited"
                                           : "invalid argument";
}

const char* LastError(ncclComm* /*comm*/) { return ""; }

}  // namespace

namespace hvd {

void* FakeNccl::Find(const char* name) {
  const struct {
    const char* name;
    void* function;
  } known[] = {
      {"ncclGetVersion", reinterpret_cast<void*>(&GetVersion)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(&NewId)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(&Connect)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&GetAsyncError)},
      {"ncclCommAbort", reinterpret_cast<void*>(&Abort)},
      {"ncclGroupStart", reinterpret_cast<void*>(&BeginGroup)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&EndGroup)},
      {"ncclAllReduce", reinterpret_cast<void*>(&Allreduce)},
      {"ncclReduceScatter", reinterpret_cast<void*>(&ReduceScatter)},
      {"ncclReduce", reinterpret_cast<void*>(&Reduce)},
      {"ncclBroadcast", reinterpret_cast<void*>(&Broadcast)},
      {"ncclAllGather", reinterpret_cast<void*>(&AllGather)},
      {"ncclSend", reinterpret_cast<void*>(&Send)},
      {"ncclRecv", reinterpret_cast<void*>(&Recv)},
      {"ncclRedOpCreatePreMulSum", reinterpret_cast<void*>(&NewScaledSum)},
      {"ncclGetErrorString", reinterpret_cast<void*>(&TextOfError)},
      {"ncclGetLastError", reinterpret_cast<void*>(&LastError)},
  };
  for (const auto& one : known) {
    if (std::strcmp(one.name, name) == 0) return one.function;
  }
  return nullptr;
}

void FakeNccl::Reset() {
  const std::lock_guard<std::mutex> lock(mutex);
  connect_is_held = links_are_held = false;
  links_fail_on = trials_fail_on = -1;
  released.clear();
  connect_fails_on = launch_fails_on = async_fails_on = kernels_held_on = -1;
  abort_waits_on = -1;
  running.clear();
  completed_groups = next_identity = early_ends = misfits = 0;
  worlds.clear();
  calls_launched.clear();
  groups_launched.clear();
}

void FakeNccl::HoldConnect() {
  const std::lock_guard<std::mutex> lock(mutex);
  connect_is_held = true;
}

void FakeNccl::ReleaseConnect(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  released.insert(rank);
}

void FakeNccl::FailConnect(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  connect_fails_on = rank;
}

void FakeNccl::HoldLinks() {
  const std::lock_guard<std::mutex> lock(mutex);
  links_are_held = true;
}

void FakeNccl::FailLinks(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  links_fail_on = rank;
}

void FakeNccl::FailLaunch(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  launch_fails_on = rank;
}

void FakeNccl::FailTrials(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  trials_fail_on = rank;
}

void FakeNccl::FailAsync(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  async_fails_on = rank;
}

void FakeNccl::FailNow(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [comm, owned] : communicators) {
    if (comm->rank != rank) continue;
    comm->is_failing = true;
    comm->error = hvd::kNcclRemoteError;
  }
}

void FakeNccl::HoldKernels(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels_held_on = rank;
}

void FakeNccl::ReleaseKernels() {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels_held_on = -1;
}

void FakeNccl::AbortWaits(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  abort_waits_on = rank;
}

int FakeNccl::launched(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  return groups_launched[rank];
}

bool FakeNccl::WaitUntilLaunched(int rank, int groups) {
  std::unique_lock<std::mutex> lock(mutex);
  return group_is_launched.wait_for(lock, std::chrono::seconds(20), [&] {
    return groups_launched[rank] >= groups;
  });
}

int FakeNccl::calls(Kind kind) {
  const std::lock_guard<std::mutex> lock(mutex);
  return calls_launched[kind];
}

int FakeNccl::misfitting() {
  const std::lock_guard<std::mutex> lock(mutex);
  return misfits;
}

int FakeNccl::gone_early() {
  const std::lock_guard<std::mutex> lock(mutex);
  return early_ends;
}

int FakeNccl::completed() {
  const std::lock_guard<std::mutex> lock(mutex);
  return completed_groups;
}

int FakeNccl::identities() {
  const std::lock_guard<std::mutex> lock(mutex);
  return next_identity;
}

}  // namespace hvd
