// SPDX-License-Identifier: Apache-2.0
// Backend: one rank's door to its peers: who they are, messages, transports.
#ifndef HVD_CORE_BACKEND_H_
#define HVD_CORE_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "core/doorbell.h"
#include "core/shared_bytes.h"
#include "core/status.h"
#include "core/transport.h"

namespace hvd {

// Where this rank stands in the job. A host is a set of ranks that share
// memory, or that were told so by HVD_HOST_ID.
struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host, in rank order
  int local_size = 1;
  std::vector<int> local_ranks{0};  // ranks of this host, ascending
  // Of each rank; hosts are numbered by their first rank.
  std::vector<int> host_of{0};
  int cross_rank = 0;  // among the ranks with this local_rank, over hosts
  int cross_size = 1;
  bool is_homogeneous = true;      // every host has the same number of ranks
  std::vector<std::string> hosts;  // host name of each rank, for messages
};

// Small messages between ranks: the control plane. In order between any two
// ranks, never lost, never blocking.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual void Send(int peer, SharedBytes message) = 0;
  // False when nothing has arrived.
  virtual bool Receive(int* peer, std::string* message) = 0;
  // Frees what has been sent. True while messages are still on their way.
  virtual bool Flush() = 0;
  // Not Ok for good once a message could not be sent or received.
  virtual Status status() const = 0;
};

// Owned by the Runtime; used by its background thread only, but for topology
// and doorbell, which are constant, and Abort.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Topology& topology() const = 0;
  virtual Channel& channel() = 0;

  // Collective over the job, before the background thread runs: the strings of
  // all ranks, by rank.
  virtual Result<std::vector<std::string>> Exchange(
      const std::string& mine) = 0;

  // A data plane among `ranks` (of the job, ascending, this one among them).
  // Every member calls it, in any order with regard to other sets; it does not
  // wait for them. `set_id` below 64 tells the sets apart on the wire.
  virtual Result<std::unique_ptr<Transport>> NewTransport(
      int set_id, const std::vector<int>& ranks) = 0;

  // Wakes the background thread. Constant; may be rung after the backend's end.
  virtual std::shared_ptr<Doorbell> doorbell() = 0;
  // Whether it is rung when something may have arrived; else this rank must
  // poll.
  virtual bool arrivals_ring() const = 0;

  // Ends the whole job with `exit_code`, this process included. Any thread.
  virtual void Abort(int exit_code) = 0;
};

}  // namespace hvd

#endif  // HVD_CORE_BACKEND_H_
