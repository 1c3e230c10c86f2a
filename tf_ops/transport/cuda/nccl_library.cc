// SPDX-License-Identifier: Apache-2.0
// Finds the functions in libnccl.so.2.
#include "transport/cuda/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "transport/cuda/found_functions.h"

namespace hvd {
namespace {

constexpr char kLibrary[] = "libnccl.so.2";

Result<NcclLibrary> Load() {
  // The library stays loaded: its threads may run to the process's end.
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
  FoundFunctions found(find);
  found.Set(&nccl.get_version, "ncclGetVersion");
  found.Set(&nccl.new_id, "ncclGetUniqueId");
  found.Set(&nccl.connect, "ncclCommInitRankConfig");
  found.Set(&nccl.get_async_error, "ncclCommGetAsyncError");
  found.Set(&nccl.abort, "ncclCommAbort");
  found.Set(&nccl.begin_group, "ncclGroupStart");
  found.Set(&nccl.end_group, "ncclGroupEnd");
  found.Set(&nccl.allreduce, "ncclAllReduce");
  found.Set(&nccl.reducescatter, "ncclReduceScatter");
  found.Set(&nccl.reduce, "ncclReduce");
  found.Set(&nccl.broadcast, "ncclBroadcast");
  found.Set(&nccl.allgather, "ncclAllGather");
  found.Set(&nccl.send, "ncclSend");
  found.Set(&nccl.receive, "ncclRecv");
  found.Set(&nccl.new_scaled_sum, "ncclRedOpCreatePreMulSum");
  found.Set(&nccl.text_of_error, "ncclGetErrorString");
  found.Set(&nccl.last_error, "ncclGetLastError");
  if (found.missing() == nullptr) return nccl;
  return FailedPrecondition(std::string(kLibrary) + " has no " +
                            found.missing() + "; install NCCL 2.14 or newer");
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
  words += '.';
  if (words.find("out of memory") != std::string::npos) {
    words += std::string(" The GPU is full. ") + kFullGpuHint;
  }
  return Internal(std::move(words));
}

void LinkNcclAtOnce() { (void)setenv("NCCL_RUNTIME_CONNECT", "0", 0); }

}  // namespace hvd
