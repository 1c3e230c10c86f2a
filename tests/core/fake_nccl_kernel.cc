// SPDX-License-Identifier: Apache-2.0
// What kernels do, on numbers of the host: doubles whatever the type.
#include "fake_nccl_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/elementwise.h"

namespace hvd::fake_nccl {
namespace {

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

std::vector<unsigned char> ToBytes(DataType dtype, const Doubles& values) {
  std::vector<unsigned char> bytes(values.size() * SizeOf(dtype));
  if (IsFloating(dtype)) {
    Pack(DataType::kFloat64, dtype, values.data(), bytes.data(),
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
    case kNcclProd:
      return a * b;
    case kNcclMax:
      return std::max(a, b);
    case kNcclMin:
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

}  // namespace

DataType TypeOf(int dtype) {
  switch (dtype) {
    case kNcclInt8:
      return DataType::kInt8;
    case kNcclUint8:
      return DataType::kUint8;
    case kNcclInt32:
      return DataType::kInt32;
    case kNcclInt64:
      return DataType::kInt64;
    case kNcclFloat16:
      return DataType::kFloat16;
    case kNcclBfloat16:
      return DataType::kBfloat16;
    case kNcclFloat32:
      return DataType::kFloat32;
    default:
      return DataType::kFloat64;
  }
}

Doubles ToDoubles(DataType dtype, const std::vector<unsigned char>& bytes,
                  size_t count) {
  Doubles values(count);
  if (IsFloating(dtype)) {
    Unpack(dtype, DataType::kFloat64, bytes.data(), values.data(),
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

bool IsBetweenTwo(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kReceive;
}

namespace {

// What a rank does of a group that all ranks make. A negative number: what it
// does with single peers.
class Kernel {
 public:
  Kernel(std::shared_ptr<ncclComm> comm, FakeGpu* gpu, int number,
         std::vector<Call> calls)
      : comm_(std::move(comm)),
        gpu_(gpu),
        number_(number),
        calls_(std::move(calls)) {}

  // Whether it has ended.
  bool Run() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (comm_->is_aborted) return true;
    if (number_ < 0) return Exchange();
    Group& group = comm_->world->groups[number_];
    if (!has_read_) Read(&group);
    if (group.read < size() || comm_->is_failing ||
        kernels_held_on == comm_->rank) {
      return false;
    }
    for (size_t i = 0; i < calls_.size(); ++i) Write(group, i);
    group.done.insert(comm_->rank);
    if (group.done.size() == static_cast<size_t>(size())) {
      if (number_ > 0) ++completed_groups;
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
    std::vector<unsigned char> bytes(count * SizeOf(dtype));
    gpu_->Read(bytes.data(), call->in, bytes.size());
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
    gpu_->Write(call.out, bytes.data(), bytes.size());
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
  FakeGpu* const gpu_;
  const int number_;
  std::vector<Call> calls_;
  bool has_read_ = false;
  std::set<const Call*> has_received_;
};

}  // namespace

FakeGpu::Work NewKernel(std::shared_ptr<ncclComm> comm, FakeGpu* gpu,
                        int number, std::vector<Call> calls) {
  const auto of_two = std::stable_partition(
      calls.begin(), calls.end(),
      [](const Call& call) { return !IsBetweenTwo(call.kind); });
  const auto parts = std::make_shared<std::deque<Kernel>>();
  if (of_two != calls.begin()) {
    parts->emplace_back(comm, gpu, number,
                        std::vector<Call>(calls.begin(), of_two));
  }
  if (of_two != calls.end()) {
    parts->emplace_back(comm, gpu, -1, std::vector<Call>(of_two, calls.end()));
  }
  return [parts] {
    while (!parts->empty()) {
      if (!parts->front().Run()) return false;
      parts->pop_front();
    }
    return true;
  };
}

}  // namespace hvd::fake_nccl
