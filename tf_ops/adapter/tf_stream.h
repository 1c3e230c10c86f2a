// SPDX-License-Identifier: Apache-2.0
// TensorFlow's streams, and the difference between its versions.
//
// Tried on 2.13.1 and those after it. Up to 2.16 the function that gives a
// stream's own handle is in a library that nothing here is linked to, so the
// handle is asked for where that function does. Newer streams are interfaces.
#ifndef HVD_ADAPTER_TF_STREAM_H_
#define HVD_ADAPTER_TF_STREAM_H_

#include <type_traits>
#include <utility>

// Up to 2.14 XLA's headers are in TensorFlow's folder.
#if __has_include("xla/stream_executor/stream.h")
#include "xla/stream_executor/stream.h"
#if __has_include("xla/stream_executor/stream_executor_internal.h")
#include "xla/stream_executor/stream_executor_internal.h"
#endif
#else
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#include "tensorflow/compiler/xla/stream_executor/stream_executor_internal.h"
#endif

namespace hvd {

template <typename Stream, typename = void>
struct HasImplementation : std::false_type {};
template <typename Stream>
struct HasImplementation<
    Stream, std::void_t<decltype(std::declval<Stream&>().implementation())>>
    : std::true_type {};

template <typename Implementation, typename = void>
struct HasPlatformStream : std::false_type {};
template <typename Implementation>
struct HasPlatformStream<Implementation,
                         std::void_t<decltype(std::declval<Implementation&>()
                                                  .platform_specific_stream())>>
    : std::true_type {};

// Up to 2.15 it has another name.
template <typename Implementation>
[[nodiscard]] void* ImplementationStream(Implementation& implementation) {
  if constexpr (HasPlatformStream<Implementation>::value) {
    return implementation.platform_specific_stream();
  } else {
    return implementation.GpuStreamHack();
  }
}

// The stream of the platform, a CUstream on NVIDIA's. Null where a platform
// does not tell it.
template <typename Stream>
[[nodiscard]] void* PlatformStream(Stream& stream) {
  if constexpr (HasImplementation<Stream>::value) {
    return ImplementationStream(*stream.implementation());
  } else {
    return stream.platform_specific_handle().stream;
  }
}

}  // namespace hvd

#endif  // HVD_ADAPTER_TF_STREAM_H_
