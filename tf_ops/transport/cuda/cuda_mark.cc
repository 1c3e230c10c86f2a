// SPDX-License-Identifier: Apache-2.0
// Marks streams, and says what a mark knows of its GPU.
#include "transport/cuda/cuda_mark.h"

namespace hvd {

Result<bool> HasReached(const CudaDriver* driver, CudaEvent event) {
  const int result = driver->query_event(event);
  if (result == kCudaNotReady) return false;
  HVD_RETURN_IF_ERROR(driver->Check(result, "a GPU failed"));
  return true;
}

Result<std::shared_ptr<const void>> MarkStream(const CudaDriver* driver,
                                               void* stream,
                                               NewBufferOf new_buffer) {
  const auto at = static_cast<CudaStream>(stream);
  CudaContext context = nullptr;
  HVD_RETURN_IF_ERROR(driver->Check(driver->context_of_stream(at, &context),
                                    "a GPU's stream has no context"));
  auto mark =
      std::make_shared<CudaMark>(driver, context, at, std::move(new_buffer));
  const InCudaContext within(driver, context);
  HVD_RETURN_IF_ERROR(within.status());
  HVD_RETURN_IF_ERROR(mark->event.Record(at));
  return std::shared_ptr<const void>(std::move(mark));
}

CudaGpu GpuOf(const std::shared_ptr<const void>& ready) {
  return {MarkOf(ready).driver, MarkOf(ready).context};
}

Result<std::string> IdentityOf(const CudaGpu& gpu) {
  const InCudaContext within(gpu.driver, gpu.context);
  HVD_RETURN_IF_ERROR(within.status());
  int number = 0;
  HVD_RETURN_IF_ERROR(gpu.driver->Check(gpu.driver->current_gpu(&number),
                                        "a GPU's context has no GPU"));
  CudaUuid uuid;
  HVD_RETURN_IF_ERROR(gpu.driver->Check(gpu.driver->uuid(&uuid, number),
                                        "a GPU has no identity"));
  return std::string(uuid.bytes, sizeof(uuid.bytes));
}

}  // namespace hvd
