// SPDX-License-Identifier: Apache-2.0
// Kernels are work of a card's stream. They read, wait for the other ranks'
// to have read, and write.
#include "fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "card/fake_card.h"
#include "cpu/elementwise.h"
#include "transport/cuda/nccl_library.h"

namespace {

using hvd::DataType;
using hvd::FakeCard;
using Doubles = std::vector<double>;

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kFirstScaledSum = 100;
// What is begun is ready when it is asked for the third time.
constexpr int kAsked = 3;

// A call of all ranks.
struct Group {
  int read = 0, done = 0;
  std::map<int, std::vector<Doubles>> of_ranks;  // [rank][tensor]
};

// What the ranks of a communicator share.
struct World {
  int size = 0;
  int arrived = 0;
  std::map<int, Group> groups;
};

struct Tensor {
  const void* in;
  void* out;
  size_t count;
  int dtype, op;
};

std::mutex mutex;  // of all below, and of the communicators
std::map<std::string, std::shared_ptr<World>> worlds;
int next_identity = 0;
int completed_groups = 0;
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
  std::vector<Tensor> tensors;
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

// The kernel of a rank.
class Kernel {
 public:
  Kernel(std::shared_ptr<ncclComm> comm, FakeCard* card, int number,
         std::vector<Tensor> tensors)
      : comm_(std::move(comm)),
        card_(card),
        number_(number),
        tensors_(std::move(tensors)) {}

  // Whether it has ended.
  bool Run() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (comm_->is_aborted) return true;
    Group& group = comm_->world->groups[number_];
    if (!has_read_) Read(&group);
    if (group.read < comm_->world->size || comm_->is_failing) return false;
    Write(group);
    if (++group.done == comm_->world->size) {
      ++completed_groups;
      comm_->world->groups.erase(number_);
    }
    return true;
  }

 private:
  void Read(Group* group) {
    has_read_ = true;
    ++group->read;
    std::vector<Doubles>& mine = group->of_ranks[comm_->rank];
    for (const Tensor& tensor : tensors_) {
      const DataType dtype = TypeOf(tensor.dtype);
      std::vector<unsigned char> bytes(tensor.count * hvd::SizeOf(dtype));
      card_->Read(bytes.data(), tensor.in, bytes.size());
      mine.push_back(ToDoubles(dtype, bytes, tensor.count));
      if (tensor.op < kFirstScaledSum) continue;
      for (double& value : mine.back()) {
        value *=
            comm_->factors[static_cast<size_t>(tensor.op) - kFirstScaledSum];
      }
    }
  }

  void Write(const Group& group) {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const Tensor& tensor = tensors_[t];
      Doubles sum = group.of_ranks.at(0).at(t);
      for (int rank = 1; rank < comm_->world->size; ++rank) {
        const Doubles& other = group.of_ranks.at(rank).at(t);
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] = Reduced(tensor.op, sum[i], other[i]);
        }
      }
      const std::vector<unsigned char> bytes =
          ToBytes(TypeOf(tensor.dtype), sum);
      card_->Write(tensor.out, bytes.data(), bytes.size());
    }
  }

  const std::shared_ptr<ncclComm> comm_;
  FakeCard* const card_;
  const int number_;
  const std::vector<Tensor> tensors_;
  bool has_read_ = false;
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
  const auto kernel =
      std::make_shared<Kernel>(group.comm, group.stream->card,
                               comm.next_group++, std::move(group.tensors));
  group.stream->card->Queue(group.stream, [kernel] { return kernel->Run(); });
  return hvd::kNcclInProgress;
}

int BeginGroup() {
  ++open_group.depth;
  return hvd::kNcclSuccess;
}

int EndGroup() { return --open_group.depth > 0 ? hvd::kNcclSuccess : Launch(); }

int Allreduce(const void* in, void* out, size_t count, int dtype, int op,
              ncclComm* comm, CUstream_st* stream) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    // Not to be called while it is in progress.
    if (comm->in_progress > 0) return kInvalidArgument;
    open_group.comm = communicators.at(comm);
  }
  open_group.stream = reinterpret_cast<FakeCard::Stream*>(stream);
  open_group.tensors.push_back({in, out, count, dtype, op});
  return open_group.depth > 0 ? hvd::kNcclSuccess : Launch();
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
  connect_fails_on = launch_fails_on = async_fails_on = -1;
  completed_groups = next_identity = 0;
  worlds.clear();
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

int FakeNccl::completed() {
  const std::lock_guard<std::mutex> lock(mutex);
  return completed_groups;
}

int FakeNccl::identities() {
  const std::lock_guard<std::mutex> lock(mutex);
  return next_identity;
}

}  // namespace hvd
