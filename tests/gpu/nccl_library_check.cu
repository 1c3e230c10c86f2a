// SPDX-License-Identifier: Apache-2.0
// Compares nccl_library.h with nccl.h, while it is compiled.
#include <nccl.h>

#include "transport/cuda/nccl_library.h"

namespace hvd {
namespace {

// The same registers hold both: enumerations are numbers in our declarations,
// and structures have as many bytes.
template <typename Ours, typename Theirs>
constexpr bool kAlike = sizeof(Ours) == sizeof(Theirs) &&
                        std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                        std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <typename OurResult, typename... Ours, typename TheirResult,
          typename... Theirs>
constexpr bool AreAlike(OurResult (*NcclLibrary::*)(Ours...),
                        TheirResult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return kAlike<OurResult, TheirResult> && (kAlike<Ours, Theirs> && ...);
  } else {
    return false;
  }
}

static_assert(AreAlike(&NcclLibrary::get_version, &ncclGetVersion));
static_assert(AreAlike(&NcclLibrary::new_id, &ncclGetUniqueId));
static_assert(AreAlike(&NcclLibrary::connect, &ncclCommInitRankConfig));
static_assert(AreAlike(&NcclLibrary::get_async_error, &ncclCommGetAsyncError));
static_assert(AreAlike(&NcclLibrary::abort, &ncclCommAbort));
static_assert(AreAlike(&NcclLibrary::begin_group, &ncclGroupStart));
static_assert(AreAlike(&NcclLibrary::end_group, &ncclGroupEnd));
static_assert(AreAlike(&NcclLibrary::allreduce, &ncclAllReduce));
static_assert(AreAlike(&NcclLibrary::reducescatter, &ncclReduceScatter));
static_assert(AreAlike(&NcclLibrary::reduce, &ncclReduce));
static_assert(AreAlike(&NcclLibrary::broadcast, &ncclBroadcast));
static_assert(AreAlike(&NcclLibrary::allgather, &ncclAllGather));
static_assert(AreAlike(&NcclLibrary::send, &ncclSend));
static_assert(AreAlike(&NcclLibrary::receive, &ncclRecv));
static_assert(AreAlike(&NcclLibrary::new_scaled_sum,
                       &ncclRedOpCreatePreMulSum));
static_assert(AreAlike(&NcclLibrary::text_of_error, &ncclGetErrorString));
static_assert(AreAlike(&NcclLibrary::last_error, &ncclGetLastError));

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) ==
              offsetof(ncclConfig_t, blocking));
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));

static_assert(kNcclSuccess == ncclSuccess);
static_assert(kNcclRemoteError == ncclRemoteError);
static_assert(kNcclInProgress == ncclInProgress);
static_assert(kNcclSum == ncclSum);
static_assert(kNcclProd == ncclProd);
static_assert(kNcclMax == ncclMax);
static_assert(kNcclMin == ncclMin);
static_assert(kNcclInt8 == ncclInt8);
static_assert(kNcclUint8 == ncclUint8);
static_assert(kNcclInt32 == ncclInt32);
static_assert(kNcclInt64 == ncclInt64);
static_assert(kNcclFloat16 == ncclFloat16);
static_assert(kNcclFloat32 == ncclFloat32);
static_assert(kNcclFloat64 == ncclFloat64);
static_assert(kNcclBfloat16 == ncclBfloat16);
static_assert(kNcclScalarOfHost == ncclScalarHostImmediate);

}  // namespace
}  // namespace hvd
