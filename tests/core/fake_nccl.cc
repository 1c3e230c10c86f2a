// SPDX-License-Identifier: Apache-2.0
// Kernels are work of a card's stream. They read, wait for the other ranks'
// to have read, and write.
#include "fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "card/fake_card.h"
#include "cpu/elementwise.h"
#include "transport/cuda/nccl_library.h"
#include "transport/device/communicator_calls.h"

namespace {

using hvd::DataType;
using hvd::FakeCard;
using Doubles = std::vector<double>;
using Kind = hvd::CommunicatorCall::Kind;

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kFirstScaledSum = 100;
// What is begun is ready when it is asked for the third time.
constexpr int kAsked = 3;

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
  // What was sent and not received: [from, to].
  std::map<std::pair<int, int>, std::deque<Doubles>> messages;
};

std::mutex mutex;  // of all below, and of the communicators
std::map<std::string, std::shared_ptr<World>> worlds;
int next_identity = 0;
int completed_groups = 0;
int early_ends = 0;
int misfits = 0;
std::map<Kind, int> launched;
int kernels_held_on = -1;
bool connect_is_held = false;
std::set<int> released;
int connect_fails_on = -1, launch_fails_on = -1, async_fails_on = -1;

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int next_group = 0;
  int in_progress = kAsked;
  int error = hvd::kNcclSuccess;
  bool is_failing = false;  // its kernels do not end
  bool is_aborted = false;
  std::vector<double> factors;  // of scaled sums
};

namespace {

// Kernels may outlive the handle.
std::map<ncclComm*, std::shared_ptr<ncclComm>> communicators;

struct OpenGroup {
  int depth = 0;
  std::shared_ptr<ncclComm> comm;
  FakeCard::Stream* stream = nullptr;
  std::vector<Call> calls;
};
thread_local OpenGroup open_group;

DataType TypeOf(int dtype) {
  switch (dtype) {
    case hvd::kNcclInt8:
      return DataType::kInt8;
    case hvd::kNcclUint8:
      return DataType::kUint8;
    case hvd::kNcclInt32:
      return DataType::kInt32;
    case hvd::kNcclInt64:
      return DataType::kInt64;
    case hvd::kNcclFloat16:
      return DataType::kFloat16;
    case hvd::kNcclBfloat16:
      return DataType::kBfloat16;
    case hvd::kNcclFloat32:
      return DataType::kFloat32;
    default:
      return DataType::kFloat64;
  }
}

// Calls visit(T()) with the integer type.
template <typename Visit>
void WithInteger(DataType dtype, Visit visit) {
  switch (dtype) {
    case DataType::kInt8:
      return visit(int8_t());
    case DataType::kUint8:
      return visit(uint8_t());
    case DataType::kInt32:
      return visit(int32_t());
    default:
      return visit(int64_t());
  }
}

Doubles ToDoubles(DataType dtype, const std::vector<unsigned char>& bytes,
                  size_t count) {
  Doubles values(count);
  if (hvd::IsFloating(dtype)) {
    hvd::Unpack(dtype, DataType::kFloat64, bytes.data(), values.data(),
                static_cast<int64_t>(count));
    return values;
  }
  WithInteger(dtype, [&](auto zero) {
    for (size_t i = 0; i < count; ++i) {
      auto value = zero;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = static_cast<double>(value);
    }
  });
  return values;
}

std::vector<unsigned char> ToBytes(DataType dtype, const Doubles& values) {
  std::vector<unsigned char> bytes(values.size() * hvd::SizeOf(dtype));
  if (hvd::IsFloating(dtype)) {
    hvd::Pack(DataType::kFloat64, dtype, values.data(), bytes.data(),
              static_cast<int64_t>(values.size()), 1.0);
    return bytes;
  }
  WithInteger(dtype, [&](auto zero) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<decltype(zero)>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
    }
  });
  return bytes;
}

double Reduced(int op, double a, double b) {
  switch (op) {
    case hvd::kNcclProd:
      return a * b;
    case hvd::kNcclMax:
      return std::max(a, b);
    case hvd::kNcclMin:
      return std::min(a, b);
    default:
      return a + b;
  }
}

// How many elements a kernel reads for a call.
size_t InputCount(const Call& call, int rank, int size) {
  switch (call.kind) {
    case Kind::kReceive:
      return 0;
    case Kind::kBroadcast:
      return rank == call.peer ? call.count : 0;
    case Kind::kReducescatter:
      return call.count * static_cast<size_t>(size);
    default:
      return call.count;
  }
}

bool IsBetweenTwo(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kReceive;
}

// The kernel of a rank.
class Kernel {
 public:
  Kernel(std::shared_ptr<ncclComm> comm, FakeCard* card, int number,
         std::vector<Call> calls)
      : comm_(std::move(comm)),
        card_(card),
        number_(number),
        calls_(std::move(calls)) {}

  // Whether it has ended.
  bool Run() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (comm_->is_aborted) return true;
    if (IsBetweenTwo(calls_[0].kind)) return Exchange();
    Group& group = comm_->world->groups[number_];
    if (!has_read_) Read(&group);
    if (group.read < size() || comm_->is_failing ||
        kernels_held_on == comm_->rank) {
      return false;
    }
    for (size_t i = 0; i < calls_.size(); ++i) Write(group, i);
    group.done.insert(comm_->rank);
    if (group.done.size() == static_cast<size_t>(size())) {
      ++completed_groups;
      comm_->world->groups.erase(number_);
    }
    return true;
  }

 private:
  int size() const { return comm_->world->size; }

  void Read(Group* group) {
    has_read_ = true;
    ++group->read;
    for (Call& call : calls_) ReadInput(&call);
    group->of_ranks[comm_->rank] = calls_;
  }

  void ReadInput(Call* call) {
    const DataType dtype = TypeOf(call->dtype);
    const size_t count = InputCount(*call, comm_->rank, size());
    std::vector<unsigned char> bytes(count * hvd::SizeOf(dtype));
    card_->Read(bytes.data(), call->in, bytes.size());
    call->values = ToDoubles(dtype, bytes, count);
    if (call->op < kFirstScaledSum) return;
    for (double& value : call->values) {
      value *= comm_->factors[static_cast<size_t>(call->op) - kFirstScaledSum];
    }
  }

  // The rank's side of this rank's call.
  const Call& Of(const Group& group, int rank, size_t i) {
    const Call& mine = calls_[i];
    const std::vector<Call>& theirs = group.of_ranks.at(rank);
    const bool fits = i < theirs.size() && theirs[i].kind == mine.kind &&
                      theirs[i].count == mine.count &&
                      theirs[i].peer == mine.peer &&
                      theirs[i].dtype == mine.dtype;
    if (!fits) ++misfits;
    return fits ? theirs[i] : mine;
  }

  // Sends and receives, of which only the peers that they name know.
  bool Exchange() {
    World& world = *comm_->world;
    const int rank = comm_->rank;
    if (!has_read_) {
      has_read_ = true;
      for (Call& call : calls_) {
        if (call.kind != Kind::kSend) continue;
        ReadInput(&call);
        world.messages[{rank, call.peer}].push_back(call.values);
      }
    }
    if (comm_->is_failing || kernels_held_on == rank) return false;
    for (Call& call : calls_) {
      if (call.kind != Kind::kReceive || has_received_.count(&call) > 0) {
        continue;
      }
      std::deque<Doubles>& waiting = world.messages[{call.peer, rank}];
      if (waiting.empty()) return false;
      if (waiting.front().size() == call.count) {
        WriteOutput(call, waiting.front());
      } else {
        ++misfits;
      }
      waiting.pop_front();
      has_received_.insert(&call);
    }
    return true;
  }

  void Write(const Group& group, size_t i) {
    const Call& call = calls_[i];
    const int rank = comm_->rank;
    Doubles result;
    switch (call.kind) {
      case Kind::kBroadcast:
        result = Of(group, call.peer, i).values;
        break;
      case Kind::kAllgather:
        for (int from = 0; from < size(); ++from) {
          const Doubles& part = Of(group, from, i).values;
          result.insert(result.end(), part.begin(), part.end());
        }
        break;
      default:
        result = Sum(group, i);
        if (call.kind == Kind::kReduce && call.peer != rank) return;
        if (call.kind == Kind::kReducescatter) {
          const auto begin =
              result.begin() + rank * static_cast<int64_t>(call.count);
          result = Doubles(begin, begin + static_cast<int64_t>(call.count));
        }
    }
    WriteOutput(call, result);
  }

  void WriteOutput(const Call& call, const Doubles& values) {
    const std::vector<unsigned char> bytes =
        ToBytes(TypeOf(call.dtype), values);
    card_->Write(call.out, bytes.data(), bytes.size());
  }

  Doubles Sum(const Group& group, size_t i) {
    Doubles sum = Of(group, 0, i).values;
    for (int rank = 1; rank < size(); ++rank) {
      const Doubles& other = Of(group, rank, i).values;
      for (size_t e = 0; e < sum.size(); ++e) {
        sum[e] = Reduced(calls_[i].op, sum[e], other[e]);
      }
    }
    return sum;
  }

  const std::shared_ptr<ncclComm> comm_;
  FakeCard* const card_;
  const int number_;
  std::vector<Call> calls_;
  bool has_read_ = false;
  std::set<const Call*> has_received_;
};

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
  *comm = made.get();
  communicators[made.get()] = std::move(made);
  return hvd::kNcclInProgress;
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
  if (connect_fails_on == comm->rank) comm->error = kSystemError;
  *error = comm->error;
  return hvd::kNcclSuccess;
}

int Abort(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(mutex);
  comm->is_aborted = true;
  for (const auto& [number, group] : comm->world->groups) {
    if (group.done.count(comm->rank) > 0) ++early_ends;
  }
  for (const auto& [way, messages] : comm->world->messages) {
    if (way.first == comm->rank && !messages.empty()) ++early_ends;
  }
  communicators.erase(comm);
  return hvd::kNcclSuccess;
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
  if (async_fails_on == comm.rank) {
    comm.is_failing = true;
    comm.error = hvd::kNcclRemoteError;
  }
  comm.in_progress = kAsked;
  for (const Call& call : group.calls) ++launched[call.kind];
  // Those who have no part in an exchange do not count it.
  const int number = IsBetweenTwo(group.calls[0].kind) ? -1 : comm.next_group++;
  const auto kernel = std::make_shared<Kernel>(group.comm, group.stream->card,
                                               number, std::move(group.calls));
  group.stream->card->Queue(group.stream, [kernel] { return kernel->Run(); });
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
  open_group.stream = reinterpret_cast<FakeCard::Stream*>(stream);
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
  connect_is_held = false;
  released.clear();
  connect_fails_on = launch_fails_on = async_fails_on = kernels_held_on = -1;
  completed_groups = next_identity = early_ends = misfits = 0;
  worlds.clear();
  launched.clear();
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

void FakeNccl::FailLaunch(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  launch_fails_on = rank;
}

void FakeNccl::FailAsync(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  async_fails_on = rank;
}

void FakeNccl::HoldKernels(int rank) {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels_held_on = rank;
}

void FakeNccl::ReleaseKernels() {
  const std::lock_guard<std::mutex> lock(mutex);
  kernels_held_on = -1;
}

int FakeNccl::calls(Kind kind) {
  const std::lock_guard<std::mutex> lock(mutex);
  return launched[kind];
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
