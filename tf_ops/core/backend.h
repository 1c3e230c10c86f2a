// SPDX-License-Identifier: Apache-2.0
// Backend: how one rank reaches its peers: topology, messages, transports.
#ifndef HVD_CORE_BACKEND_H_
#define HVD_CORE_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "core/doorbell.h"
#include "core/process_set.h"
#include "core/shared_bytes.h"
#include "core/status.h"
#include "core/transport.h"

namespace hvd {

// Where this rank stands in the job. A host is a set of ranks that share
// memory. HVD_HOST_ID can set it instead.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host, in rank order
  int local_size = 1;
  std::vector<int> local_ranks{0};  // ranks of this host, ascending
  // The host of each rank. Hosts are numbered in the order of their first
  // ranks.
  std::vector<int> host_of{0};
  int cross_rank = 0;  // among ranks of the same local_rank
  int cross_size = 1;
  bool is_homogeneous = true;      // every host has the same number of ranks
  std::vector<std::string> hosts;  // host name of each rank, for messages
};

// Small messages between ranks: the control plane. Between any two ranks they
// stay in order. None is lost, and no call blocks.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void Send(int peer, SharedBytes message) = 0;
  // False when nothing has arrived.
  virtual bool Receive(int* peer, std::string* message) = 0;
  // Frees messages that have been sent. True while some are still on their way.
  virtual bool Flush() = 0;
  // Not Ok for good once a message could not be sent or received.
  virtual Status status() const = 0;
};

// Owner: the Runtime. Its background thread alone uses it. Any thread may call
// topology and doorbell, which are constant, and Abort.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Topology& topology() const = 0;
  virtual Channel& channel() = 0;

  // Returns the strings of all ranks, by rank. All ranks of the job call it,
  // before the background thread runs.
  virtual Result<std::vector<std::string>> Exchange(
      const std::string& mine) = 0;

  // A data plane among the ranks of a set. It refuses a rank that is not in it.
  // Every member calls it, and it does not wait for the others. Members may
  // make several sets in different orders. `slot` is below kProcessSetSlots and
  // tells the sets apart on the wire. It may be used again once no member has a
  // batch of the earlier set in flight, and all have destroyed that transport.
  // Then all must have made the new one before the first Start.
  //
  // Null: there is enough memory, but batches of other sets use it. Call it
  // again with the same arguments while these go on, or ForgetNewTransport.
  virtual Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) = 0;
  // The last call of NewTransport, which has returned null, is not repeated.
  virtual void ForgetNewTransport() {}

  // Wakes the background thread. Always the same one. It may be rung after the
  // backend has ended.
  virtual std::shared_ptr<Doorbell> doorbell() = 0;
  // Whether the doorbell rings when something may have arrived. If not, this
  // rank must poll.
  virtual bool arrivals_ring() const = 0;

  // Ends the whole job with `exit_code`, this process included. Any thread.
  virtual void Abort(int exit_code) = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_BACKEND_H_
