// SPDX-License-Identifier: Apache-2.0
// Initialises and finalises MPI, and has the communicators of one backend.
#ifndef HVD_TRANSPORT_MPI_MPI_SESSION_H_
#define HVD_TRANSPORT_MPI_MPI_SESSION_H_

#include <mpi.h>

#include <list>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/status.h"
#include "transport/job_args.h"

namespace hvd {

// Moves that were on the wire when their owner was destroyed, and their memory.
struct MpiOrphans {
  std::vector<MPI_Request> requests;
  std::shared_ptr<const void> memory;
};

// The two communicators of a backend. Its users share it.
//
// They are not freed. A peer that has not shut down yet may still send on them,
// and a message for a freed communicator can turn up in a later one that got
// its number. MPI frees them when it is finalised.
class MpiSession {
 public:
  // All ranks of the job call it.
  static Result<std::shared_ptr<MpiSession>> Open(const JobArgs& args);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm data() const { return data_; }
  MPI_Comm control() const { return control_; }
  // The largest tag that may be used.
  int tag_limit() const { return tag_limit_; }

  // Takes over moves that may never be done.
  void Adopt(MpiOrphans orphans);

  // All ranks call it. Appends every rank's string, by rank.
  Status GatherStrings(const std::string& mine, std::vector<std::string>* all);

  // All ranks call it. The variable must have the same value on all. If not,
  // every rank gets an error.
  Status CheckAlike(const std::string& name, const std::string& value);

  // All ranks call it. Finds which ranks share a host. `host_id` is
  // HVD_HOST_ID.
  Result<Topology> MakeTopology(const std::string& host_id);

 private:
  MpiSession() = default;
  Status Duplicate(MPI_Comm of);
  Status FindHostLeaders(std::vector<int>* leaders);
  void Sweep();

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int tag_limit_ = 0;
  std::list<MpiOrphans> orphans_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_MPI_MPI_SESSION_H_
