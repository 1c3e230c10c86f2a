// SPDX-License-Identifier: Apache-2.0
// TensorFlow's streams, and the difference between its versions.
//
// Tried on 2.15.1 and 2.21.0. In 2.15 the function that gives a stream's own
// handle is in a library that nothing here is linked to, so the handle is asked
// for where that function does. Newer streams are interfaces.
#ifndef HVD_ADAPTER_TF_STREAM_H_
#define HVD_ADAPTER_TF_STREAM_H_

#include <type_traits>
#include <utility>

#include "xla/stream_executor/stream.h"
#if __has_include("xla/stream_executor/stream_executor_internal.h")
#include "xla/stream_executor/stream_executor_internal.h"
#endif

namespace hvd {

template <typename Stream, typename = void>
struct HasImplementation : std::false_type {};
template <typename Stream>
struct HasImplementation<
    Stream, std::void_t<decltype(std::declval<Stream&>().implementation())>>
    : std::true_type {};

// The stream of the platform, a CUstream on NVIDIA's. Null where a platform
// does not tell it.
template <typename Stream>
[[nodiscard]] void* PlatformStream(Stream& stream) {
  if constexpr (HasImplementation<Stream>::value) {
    return stream.implementation()->GpuStreamHack();
  } else {
    return stream.platform_specific_handle().stream;
  }
}

}  // namespace hvd

#endif  // HVD_ADAPTER_TF_STREAM_H_
