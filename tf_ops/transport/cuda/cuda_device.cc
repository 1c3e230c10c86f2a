// SPDX-License-Identifier: Apache-2.0
// Streams, events and pinned memory of CUDA.
#include "transport/cuda/cuda_device.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/cuda/cuda_context.h"
#include "transport/cuda/cuda_mark.h"

namespace hvd {
namespace {

class Event final : public DeviceEvent {
 public:
  Event(const CudaDriver* driver, CudaContext context)
      : driver_(driver), context_(context), event_(driver, context) {}

  Status Record(CudaStream stream) { return event_.Record(stream); }
  CudaEvent get() const { return event_.get(); }

  Result<bool> IsReached() override {
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    return HasReached(driver_, event_.get());
  }

 private:
  const CudaDriver* const driver_;
  const CudaContext context_;
  OwnedEvent event_;
};

void CallAndDelete(CudaStream /*stream*/, int /*result*/, void* argument) {
  const std::unique_ptr<std::function<void()>> then(
      static_cast<std::function<void()>*>(argument));
  (*then)();
}

using LoadedKernels = std::shared_ptr<const Result<CudaKernels>>;

class Stream final : public DeviceStream {
 public:
  Stream(const CudaDriver* driver, CudaContext context, LoadedKernels kernels)
      : driver_(driver), context_(context), kernels_(std::move(kernels)) {}
  ~Stream() override {
    const InCudaContext within(driver_, context_);
    for (CudaStream const stream : {stream_, calls_}) {
      if (stream != nullptr) (void)driver_->delete_stream(stream);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CudaStream get() const { return stream_; }

  Status Open() {
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    int result = driver_->new_stream(&stream_, kCudaStreamNonBlocking);
    if (result == kCudaSuccess) {
      result = driver_->new_stream(&calls_, kCudaStreamNonBlocking);
    }
    const Status status = driver_->Check(result, "a GPU gave no stream");
    if (result != kCudaOutOfMemory) return status;
    return ResourceExhausted(status.message() + " " + kFullGpuHint);
  }

  Status CheckGpu(const std::shared_ptr<const void>& ready) const override {
    return CheckOf(MarkOf(ready));
  }

  Status Wait(const std::shared_ptr<const void>& ready) override {
    const CudaMark& mark = MarkOf(ready);
    HVD_RETURN_IF_ERROR(CheckOf(mark));
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    return WaitFor(mark.event.get(), stream_);
  }

  Result<bool> HasCome(
      const std::shared_ptr<const void>& ready) const override {
    const CudaMark& mark = MarkOf(ready);
    const InCudaContext within(driver_, mark.context);
    HVD_RETURN_IF_ERROR(within.status());
    return HasReached(driver_, mark.event.get());
  }

  Status CatchUp(const std::shared_ptr<const void>& ready) override {
    const CudaMark& mark = MarkOf(ready);
    HVD_RETURN_IF_ERROR(CheckOf(mark));
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    OwnedEvent now(driver_, context_);
    HVD_RETURN_IF_ERROR(now.Record(mark.stream));
    // The driver keeps an event that is deleted until it is reached.
    return WaitFor(now.get(), stream_);
  }

  Status HoldFramework(
      const std::vector<std::shared_ptr<const void>>& places) override {
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    OwnedEvent now(driver_, context_);
    HVD_RETURN_IF_ERROR(now.Record(stream_));
    std::set<CudaStream> held;
    for (const auto& place : places) {
      CudaStream const stream = MarkOf(place).stream;
      if (!held.insert(stream).second) continue;
      HVD_RETURN_IF_ERROR(
          driver_->Check(driver_->wait_for_event(stream, now.get(), 0),
                         "a GPU's stream did not wait for an event"));
    }
    return Status::Ok();
  }

  Status CopyBytes(const std::vector<CopySegment>& copies) override {
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    for (const CopySegment& copy : copies) {
      if (copy.count == 0) continue;
      HVD_RETURN_IF_ERROR(driver_->Check(
          driver_->copy(copy.to, copy.from, static_cast<size_t>(copy.count),
                        stream_),
          "a GPU did not start to copy"));
    }
    return Status::Ok();
  }

  Status CheckKernels() const override { return kernels_->status(); }

  Status CopyElements(const std::vector<CopySegment>& copies,
                      const CopyOperation& operation) override {
    HVD_RETURN_IF_ERROR(kernels_->status());
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    return kernels_->value().Copy(copies, operation, stream_);
  }

  Status SumRows(const std::vector<RowSums>& rows,
                 const RowSumOperation& operation) override {
    HVD_RETURN_IF_ERROR(kernels_->status());
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    return kernels_->value().SumRows(rows, operation, stream_);
  }

  Result<std::unique_ptr<DeviceEvent>> Record(
      std::function<void()> then) override {
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    auto event = std::make_unique<Event>(driver_, context_);
    HVD_RETURN_IF_ERROR(event->Record(stream_));
    HVD_RETURN_IF_ERROR(WaitFor(event->get(), calls_));
    auto argument = std::make_unique<std::function<void()>>(std::move(then));
    HVD_RETURN_IF_ERROR(driver_->Check(
        driver_->call_back(calls_, &CallAndDelete, argument.get(), 0),
        "a GPU did not take a callback"));
    (void)argument.release();  // CallAndDelete's
    return std::unique_ptr<DeviceEvent>(std::move(event));
  }

 private:
  Status CheckOf(const CudaMark& mark) const {
    if (mark.context == context_) return Status::Ok();
    return FailedPrecondition(
        "this rank's tensors are on two GPUs; a rank uses one: call "
        "hvd.pin_gpu(), or set CUDA_VISIBLE_DEVICES, before TensorFlow begins; "
        "or set HVD_GPU_LANE=0 on all ranks");
  }

  Status WaitFor(CudaEvent event, CudaStream stream) {
    return driver_->Check(driver_->wait_for_event(stream, event, 0),
                          "a GPU did not wait for an event");
  }

  const CudaDriver* const driver_;
  const CudaContext context_;
  const LoadedKernels kernels_;
  CudaStream stream_ = nullptr;
  // For callbacks, each behind its event. What is behind a callback waits until
  // the host has called it.
  CudaStream calls_ = nullptr;
};

}  // namespace

CudaStream StreamOf(const DeviceStream& stream) {
  return static_cast<const Stream&>(stream).get();
}

Result<std::unique_ptr<DeviceStream>> CudaDevice::NewStream(
    const std::shared_ptr<const void>& ready) {
  if (kernels_ == nullptr) {
    driver_ = MarkOf(ready).driver;
    context_ = MarkOf(ready).context;
    const InCudaContext within(driver_, context_);
    HVD_RETURN_IF_ERROR(within.status());
    kernels_ = std::make_shared<const Result<CudaKernels>>(
        CudaKernels::Load(driver_, kernel_image_));
  }
  auto stream = std::make_unique<Stream>(driver_, context_, kernels_);
  HVD_RETURN_IF_ERROR(stream->Open());
  return std::unique_ptr<DeviceStream>(std::move(stream));
}

Result<std::shared_ptr<void>> CudaDevice::NewBuffer(
    const std::shared_ptr<const void>& ready, size_t bytes) {
  const NewBufferOf& make = MarkOf(ready).new_buffer;
  std::shared_ptr<void> buffer = make ? make(bytes) : nullptr;
  if (buffer != nullptr) return buffer;
  return ResourceExhausted("this rank's GPU has no memory for " +
                           std::to_string(bytes) +
                           " bytes in which tensors travel together; a "
                           "smaller HVD_FUSION_BYTES needs less");
}

Result<std::shared_ptr<void>> CudaDevice::NewPinned(size_t bytes) {
  const InCudaContext within(driver_, context_);
  HVD_RETURN_IF_ERROR(within.status());
  void* memory = nullptr;
  HVD_RETURN_IF_ERROR(driver_->Check(
      driver_->new_pinned(&memory, bytes, kCudaHostPortable),
      "there is no pinned memory for " + std::to_string(bytes) + " bytes"));
  return std::shared_ptr<void>(
      memory, [driver = driver_, context = context_](void* gone) {
        const InCudaContext in_context(driver, context);
        (void)driver->delete_pinned(gone);
      });
}

}  // namespace hvd
