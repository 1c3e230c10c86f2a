// SPDX-License-Identifier: Apache-2.0
// CudaMark: the place that a stream of the framework has come to.
#ifndef HVD_TRANSPORT_CUDA_CUDA_MARK_H_
#define HVD_TRANSPORT_CUDA_CUDA_MARK_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "transport/cuda/cuda_context.h"
#include "transport/cuda/cuda_driver.h"

namespace hvd {

// The place that a stream of the framework has come to: what Segment::ready
// points to in memory of a GPU. `stream` is a CUstream. It and `driver`
// outlive it. Any thread. Where the stream is null, its context is current.
// `new_buffer` allocates memory of the GPU for it, by any thread, or returns
// null.
using NewBufferOf = std::function<std::shared_ptr<void>(size_t bytes)>;
[[nodiscard]] Result<std::shared_ptr<const void>> MarkStream(
    const CudaDriver* driver, void* stream, NewBufferOf new_buffer = {});

// A GPU that a process uses: the framework's context of it.
struct CudaGpu {
  const CudaDriver* driver;
  CudaContext context;
};

// That of a mark.
[[nodiscard]] CudaGpu GpuOf(const std::shared_ptr<const void>& ready);

// Sixteen bytes that no other GPU has, in this host or another.
[[nodiscard]] Result<std::string> IdentityOf(const CudaGpu& gpu);

// An event of a context.
class OwnedEvent {
 public:
  OwnedEvent(const CudaDriver* driver, CudaContext context)
      : driver_(driver), context_(context) {}
  ~OwnedEvent() {
    if (event_ == nullptr) return;
    const InCudaContext within(driver_, context_);
    (void)driver_->delete_event(event_);
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  // Puts it behind what the stream has been given. The context is current.
  Status Record(CudaStream stream) {
    if (event_ == nullptr) {
      HVD_RETURN_IF_ERROR(
          driver_->Check(driver_->new_event(&event_, kCudaEventDisableTiming),
                         "a GPU gave no event"));
    }
    return driver_->Check(driver_->record_event(event_, stream),
                          "a GPU did not record an event");
  }
  CudaEvent get() const { return event_; }

 private:
  const CudaDriver* const driver_;
  const CudaContext context_;
  CudaEvent event_ = nullptr;
};

// Whether the event is reached. The context is current.
[[nodiscard]] Result<bool> HasReached(const CudaDriver* driver,
                                      CudaEvent event);

// What MarkStream makes.
struct CudaMark {
  CudaMark(const CudaDriver* found_by, CudaContext of, CudaStream at,
           NewBufferOf by)
      : driver(found_by),
        context(of),
        stream(at),
        new_buffer(std::move(by)),
        event(found_by, of) {}

  const CudaDriver* const driver;
  const CudaContext context;
  const CudaStream stream;
  const NewBufferOf new_buffer;
  OwnedEvent event;
};

inline const CudaMark& MarkOf(const std::shared_ptr<const void>& ready) {
  return *static_cast<const CudaMark*>(ready.get());
}

}  // namespace hvd

#endif  // HVD_TRANSPORT_CUDA_CUDA_MARK_H_
