// SPDX-License-Identifier: Apache-2.0
// ThreadWorld: a job whose ranks are threads of one process.
#ifndef HVD_TESTS_CORE_THREAD_WORLD_H_
#define HVD_TESTS_CORE_THREAD_WORLD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/options.h"
#include "faults.h"
#include "transport/collectives/staged_transport.h"
#include "transport/shm/shm_host.h"
#include "transport/wire.h"
#include "transport/wire_backend.h"

namespace hvd {

// The mailboxes of a job. Backends share ownership of them, so a world may be
// destroyed before its backends. A rank may be opened once.
class ThreadWorld {
 public:
  // hosts[r] is the host of rank r. Empty: all on one. Chunks are as for
  // StagedTransport. A rank's large batches are shared by copy_threads.
  explicit ThreadWorld(int size, std::vector<std::string> hosts = {},
                       int64_t chunk_bytes = kDefaultChunkBytes,
                       int64_t copy_threads = 1);

  // To be used by one thread, as any Backend.
  std::unique_ptr<WireBackend> Open(int rank);
  std::unique_ptr<WireBackend> Open(int rank, std::shared_ptr<Faults> faults);

  // With messages and data between ranks of a host through memory that is
  // shared as processes share it, but for being mapped once. It does for
  // `set_count` sets of all ranks beside the global one. `faults` are those of
  // what crosses hosts.
  std::unique_ptr<Backend> OpenShared(
      int rank, const Options& options, int set_count,
      std::shared_ptr<Faults> faults = std::make_shared<Faults>());

  // What OpenShared has made for the first host.
  std::shared_ptr<ShmHost> host() const;

  // The wire under a transport, for tests of wires and for wrappers.
  std::unique_ptr<Wire> NewWire(int rank, int slot,
                                const std::vector<int>& ranks);

  // The code of the first Backend::Abort. The process lives on.
  std::optional<int> abort_code() const;

  struct State;  // thread_world.cc

 private:
  std::shared_ptr<State> state_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_THREAD_WORLD_H_
