// SPDX-License-Identifier: Apache-2.0
// Connects, launches and aborts, and asks NCCL how far it is.
#include "transport/cuda/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "cpu/float16.h"
#include "transport/cuda/cuda_context.h"
#include "transport/cuda/cuda_device.h"
#include "transport/cuda/cuda_mark.h"

namespace hvd {
namespace {

// Nothing: NCCL has no such type.
std::optional<int> NcclType(DataType dtype) {
  switch (dtype) {
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kUint8:
      return kNcclUint8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kBfloat16:
      return kNcclBfloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kBool:
      return std::nullopt;
  }
  return std::nullopt;
}

// NCCL's operation where nothing is scaled. A scaled sum has one of its own.
std::optional<int> NcclOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return kNcclSum;
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProd;
    case ReduceOp::kAdasum:
      return std::nullopt;
  }
  return std::nullopt;
}

// A factor as an element of a floating type.
struct Scalar {
  alignas(8) unsigned char bytes[8] = {};
};

template <typename T>
Scalar ScalarOf(double factor, double* rounded) {
  const T value = ConvertFloat<T>(factor);
  *rounded = ConvertFloat<double>(value);
  Scalar scalar;
  std::memcpy(scalar.bytes, &value, sizeof(value));
  return scalar;
}

Scalar ScalarOf(DataType dtype, double factor, double* rounded) {
  switch (dtype) {
    case DataType::kFloat16:
      return ScalarOf<Float16>(factor, rounded);
    case DataType::kBfloat16:
      return ScalarOf<Bfloat16>(factor, rounded);
    case DataType::kFloat32:
      return ScalarOf<float>(factor, rounded);
    default:
      return ScalarOf<double>(factor, rounded);
  }
}

// For the end of what was aborted.
constexpr std::chrono::seconds kAbortLimit{5};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclLibrary* nccl, CudaGpu gpu)
      : nccl_(nccl), gpu_(gpu) {}
  ~NcclCommunicator() override {
    Abort();
    // A GPU that hangs may never let it end.
    if (aborted_.valid()) aborted_.wait_until(abort_limit_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  Status Connect(const NcclId& id, int rank, int size) {
    const InCudaContext within(gpu_.driver, gpu_.context);
    HVD_RETURN_IF_ERROR(within.status());
    NcclConfig config;
    return nccl_->Check(nccl_->connect(&comm_, size, id, rank, &config),
                        "NCCL did not connect", comm_);
  }

  Result<bool> IsReady() override {
    if (comm_ == nullptr) return Internal("NCCL's communicator was aborted.");
    int state = kNcclSuccess;
    HVD_RETURN_IF_ERROR(nccl_->Check(nccl_->get_async_error(comm_, &state),
                                     "NCCL failed", comm_));
    HVD_RETURN_IF_ERROR(nccl_->Check(state, "NCCL failed", comm_));
    return state == kNcclSuccess;
  }

  Status Launch(const CommunicatorCalls& calls, DeviceStream* stream) override {
    const InCudaContext within(gpu_.driver, gpu_.context);
    HVD_RETURN_IF_ERROR(within.status());
    const int dtype = NcclType(calls.dtype).value_or(kNcclFloat32);
    int op = NcclOp(calls.op).value_or(kNcclSum);
    if (calls.scale != 1.0) {
      const Result<int> scaled = ScaledSum(calls.dtype, calls.scale);
      if (!scaled.ok()) return scaled.status();
      op = scaled.value();
    }
    HVD_RETURN_IF_ERROR(Check(nccl_->begin_group()));
    Status status;
    for (const CommunicatorCall& call : calls.calls) {
      if (status.ok()) status = Check(Make(call, dtype, op, StreamOf(*stream)));
    }
    const Status ended = Check(nccl_->end_group());
    return status.ok() ? ended : status;
  }

  void Abort() override {
    if (comm_ == nullptr) return;
    // NCCL frees memory, for which CUDA waits until all that the GPU is at has
    // ended: also work of other communicators, which may wait for the same
    // peer. So these must be aborted meanwhile. Its operators go with it.
    std::packaged_task<void()> abort(
        [nccl = nccl_, gpu = gpu_, comm = std::exchange(comm_, nullptr)] {
          const InCudaContext within(gpu.driver, gpu.context);
          (void)nccl->abort(comm);
        });
    aborted_ = abort.get_future();
    abort_limit_ = std::chrono::steady_clock::now() + kAbortLimit;
    std::thread(std::move(abort)).detach();
  }

  bool IsGone() override {
    return !aborted_.valid() ||
           aborted_.wait_for(std::chrono::seconds(0)) ==
               std::future_status::ready ||
           std::chrono::steady_clock::now() >= abort_limit_;
  }

 private:
  int Make(const CommunicatorCall& call, int dtype, int op, CudaStream stream) {
    using Kind = CommunicatorCall::Kind;
    const auto count = static_cast<size_t>(call.count);
    switch (call.kind) {
      case Kind::kAllreduce:
        return nccl_->allreduce(call.in, call.out, count, dtype, op, comm_,
                                stream);
      case Kind::kReducescatter:
        return nccl_->reducescatter(call.in, call.out, count, dtype, op, comm_,
                                    stream);
      case Kind::kReduce:
        return nccl_->reduce(call.in, call.out, count, dtype, op, call.peer,
                             comm_, stream);
      case Kind::kBroadcast:
        return nccl_->broadcast(call.in, call.out, count, dtype, call.peer,
                                comm_, stream);
      case Kind::kAllgather:
        return nccl_->allgather(call.in, call.out, count, dtype, comm_, stream);
      case Kind::kSend:
        return nccl_->send(call.in, count, dtype, call.peer, comm_, stream);
      case Kind::kReceive:
        return nccl_->receive(call.out, count, dtype, call.peer, comm_, stream);
    }
    return kNcclSuccess;
  }

  Status Check(int result) const {
    return nccl_->Check(result, "NCCL did not start a batch", comm_);
  }

  // Operators are kept: a model has one or two.
  Result<int> ScaledSum(DataType dtype, double scale) {
    const auto found = scaled_sums_.find({dtype, scale});
    if (found != scaled_sums_.end()) return found->second;
    int made = 0;
    double rounded = 0;
    Scalar scalar = ScalarOf(dtype, scale, &rounded);
    HVD_RETURN_IF_ERROR(Check(nccl_->new_scaled_sum(
        &made, scalar.bytes, NcclType(dtype).value_or(kNcclFloat32),
        kNcclScalarOfHost, comm_)));
    scaled_sums_[{dtype, scale}] = made;
    return made;
  }

  const NcclLibrary* const nccl_;
  const CudaGpu gpu_;
  NcclComm comm_ = nullptr;
  std::future<void> aborted_;  // once that was begun
  std::chrono::steady_clock::time_point abort_limit_;
  std::map<std::pair<DataType, double>, int> scaled_sums_;
};

}  // namespace

Result<Communicators::Offer> NcclCommunicators::Look(
    const std::shared_ptr<const void>& ready) {
  const Result<const NcclLibrary*> nccl = find_();
  if (!nccl.ok()) return nccl.status();
  Offer offer;
  HVD_RETURN_IF_ERROR(
      nccl.value()->Check(nccl.value()->get_version(&offer.version),
                          "NCCL has no version", nullptr));
  auto gpu = IdentityOf(GpuOf(ready));
  if (!gpu.ok()) return gpu.status();
  offer.gpu = std::move(gpu.value());
  return offer;
}

Result<std::string> NcclCommunicators::NewId() {
  const Result<const NcclLibrary*> nccl = find_();
  if (!nccl.ok()) return nccl.status();
  NcclId id;
  HVD_RETURN_IF_ERROR(nccl.value()->Check(nccl.value()->new_id(&id),
                                          "NCCL gave no identity", nullptr));
  return std::string(id.bytes, sizeof(id.bytes));
}

Result<std::unique_ptr<Communicator>> NcclCommunicators::Connect(
    const std::string& id, int rank, int size,
    const std::shared_ptr<const void>& ready) {
  const Result<const NcclLibrary*> nccl = find_();
  if (!nccl.ok()) return nccl.status();
  NcclId of_all;
  if (id.size() != sizeof(of_all.bytes)) {
    return Internal("an identity of NCCL has " + std::to_string(id.size()) +
                    " bytes.");
  }
  std::memcpy(of_all.bytes, id.data(), id.size());
  auto made = std::make_unique<NcclCommunicator>(nccl.value(), GpuOf(ready));
  HVD_RETURN_IF_ERROR(made->Connect(of_all, rank, size));
  return std::unique_ptr<Communicator>(std::move(made));
}

bool NcclCommunicators::Takes(DataType dtype, ReduceOp op, double scale) const {
  if (!NcclType(dtype).has_value() || !NcclOp(op).has_value()) return false;
  if (scale == 1.0) return true;
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  if (!is_sum || !IsFloating(dtype)) return false;
  if (dtype == DataType::kFloat32 || dtype == DataType::kFloat64) return true;
  // NCCL multiplies in the narrow type. That of one rank in three would be off
  // by as much as all the rounding of a sum.
  double rounded = 0;
  (void)ScalarOf(dtype, scale, &rounded);
  return rounded == scale;
}

}  // namespace hvd
