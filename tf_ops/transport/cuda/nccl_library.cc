// SPDX-License-Identifier: Apache-2.0
// Finds the functions in libnccl.so.2.
#include "transport/cuda/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace hvd {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";

Result<NcclLibrary> Load() {
  // It stays loaded: its threads may run to the process's end.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return FailedPrecondition(std::string(kLibrary) + " cannot be loaded: " +
                              (why == nullptr ? "no reason given" : why));
  }
  return NcclLibrary::Find(
      [library](const char* name) { return dlsym(library, name); });
}

}  // namespace

Result<NcclLibrary> NcclLibrary::Find(
    const std::function<void*(const char* name)>& find) {
  NcclLibrary nccl;
  const char* missing = nullptr;
  const auto set = [&](auto* function, const char* name) {
    void* const found = find(name);
    if (found == nullptr && missing == nullptr) missing = name;
    *function =
        reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
  };
  set(&nccl.get_version, "ncclGetVersion");
  set(&nccl.new_id, "ncclGetUniqueId");
  set(&nccl.connect, "ncclCommInitRankConfig");
  set(&nccl.get_async_error, "ncclCommGetAsyncError");
  set(&nccl.abort, "ncclCommAbort");
  set(&nccl.begin_group, "ncclGroupStart");
  set(&nccl.end_group, "ncclGroupEnd");
  set(&nccl.allreduce, "ncclAllReduce");
  set(&nccl.new_scaled_sum, "ncclRedOpCreatePreMulSum");
  set(&nccl.text_of_error, "ncclGetErrorString");
  set(&nccl.last_error, "ncclGetLastError");
  if (missing == nullptr) return nccl;
  return FailedPrecondition(std::string(kLibrary) + " has no " + missing +
                            "; install NCCL 2.14 or newer");
}

Result<const NcclLibrary*> NcclLibrary::OfMachine() {
  static const Result<NcclLibrary> library = Load();
  if (!library.ok()) return library.status();
  return &library.value();
}

Status NcclLibrary::Check(int result, const std::string& what,
                          NcclComm comm) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return Status::Ok();
  const char* const text = text_of_error(result);
  const char* const more = last_error(comm);
  std::string words = what + ": " + (text == nullptr ? "an error" : text) +
                      " (" + std::to_string(result) + ")";
  if (more != nullptr && more[0] != '\0') words += ", " + std::string(more);
  return Internal(words + ".");
}

}  // namespace hvd
