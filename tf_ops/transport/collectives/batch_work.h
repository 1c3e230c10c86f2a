// SPDX-License-Identifier: Apache-2.0
// BatchWork: what the phases of one staged batch share.
#ifndef HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_
#define HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_

#include <cstdint>

#include "core/host_map.h"
#include "core/rows.h"
#include "core/status.h"
#include "core/transport.h"
#include "cpu/work_threads.h"
#include "transport/collectives/poison.h"
#include "transport/wire.h"

namespace hvd {

// A batch on a wire. It begins attached to the memory of its caller. Once it
// has failed here, it is detached: it serves its peers, but has no memory and
// no result of its own. Thread: the transport's.
class BatchWork {
 public:
  // The batch has been checked by CheckBatch. `threads` may be null. Large
  // phases share their work with them.
  BatchWork(Batch batch, uint64_t sequence, int64_t chunk_bytes, Wire* wire,
            WorkThreads* threads);

  const Batch& batch() const { return batch_; }
  // Null: nobody wants to know when it moves.
  BatchTimes* times() const { return batch_.times.get(); }
  Wire* wire() const { return wire_; }
  uint64_t sequence() const { return sequence_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  WorkThreads* threads() const { return threads_; }

  // The ranks that work on it together, which phases count from 0 on: those of
  // the set, or Batch::partners.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts().host.size()); }
  const HostMap& hosts() const {
    return batch_.partners.empty() ? wire_->hosts() : partner_hosts_;
  }
  // The set's number for one of those ranks. The wire and poison use the set's.
  int SetRank(int rank) const {
    return batch_.partners.empty() ? rank
                                   : batch_.partners[static_cast<size_t>(rank)];
  }

  bool is_detached() const { return static_cast<bool>(poison_); }
  const Poison& poison() const { return poison_; }
  // Detaches it. Later calls change nothing.
  void Fail(Poison poison) {
    if (!is_detached()) poison_ = poison;
  }
  // The same for what has failed on this rank alone. The caller gets `error`.
  void FailHere(const Status& error) {
    if (is_detached()) return;
    local_error_ = error;
    poison_ = {error.code(), wire_->rank(), -1};
  }
  const Status& local_error() const { return local_error_; }

  // Asks the batch for its outputs. `rows`: see Batch::allocate. Does nothing
  // once detached.
  void Allocate(const RankCounts& rows);

 private:
  Batch batch_;
  const uint64_t sequence_;
  const int64_t chunk_bytes_;
  Wire* const wire_;
  WorkThreads* const threads_;
  int rank_;
  HostMap partner_hosts_;
  Poison poison_;
  Status local_error_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_COLLECTIVES_BATCH_WORK_H_
