// SPDX-License-Identifier: Apache-2.0
// Executor: carries out a set's agreed batches on its lane.
#ifndef HVD_CORE_EXECUTOR_H_
#define HVD_CORE_EXECUTOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/negotiator.h"
#include "core/status.h"
#include "core/transport.h"
#include "core/tuning.h"

namespace hvd {

// Turns a ReadyBatch into the transport's Batch: allocates gathered outputs,
// lists the segments, and calls each entry's done when the wire is, or leaves
// it to the entry's runner. Background thread only.
class Executor {
 public:
  using Clock = std::chrono::steady_clock;

  // `check_finite`: an allreduce or allgather of a NaN or an infinity fails.
  explicit Executor(std::unique_ptr<Transport> host_transport,
                    bool check_finite = false);
  ~Executor();

  void Execute(ReadyBatch ready);
  bool Progress();
  PieceLimits piece_limits() const { return transport_->piece_limits(); }
  // Holds for the batches executed from now on. Not Ok for what no leader of
  // this build asks for.
  Status Tune(const Tuning& tuning);
  int in_flight() const { return transport_->in_flight(); }
  // Of these, what a peer may still need: all but those ended by CancelAfter.
  int needed_in_flight() const { return in_flight() - cancelled_; }

  // A batch that failed though all ranks were well: the lane is broken.
  struct Breakdown {
    uint64_t log_number;
    Status status;
  };
  const std::optional<Breakdown>& breakdown() const { return breakdown_; }

  // The request of an entry on the wire whose done is still to be called; null
  // when there is none of that ticket.
  const Request* FindRunning(uint64_t ticket) const;

  // Nobody waits for this entry of FindRunning any more: once no other of its
  // batch is waited for either, EndUnwanted ends the batch here with `why`, if
  // it is not over by `limit`.
  void Unwant(uint64_t ticket, const Status& why, Clock::time_point limit);
  void EndUnwanted(Clock::time_point now);

  // What is on the wire here.
  void AppendRunning(std::vector<std::string>* names) const;

  // Ends the batches of log records behind `log_number`: a member takes no
  // part in them. 0 ends all.
  void CancelAfter(uint64_t log_number, const Status& why);

 private:
  struct Work;
  struct Running {
    BatchId id;
    std::shared_ptr<const Work> work;
    // How many of its entries nobody waits for since Unwant, and what it said.
    size_t unwanted = 0;
    Status why;
    Clock::time_point limit;
  };

  // The wire is done with the batch.
  void Finish(const std::shared_ptr<const Work>& work, const Status& status);

  const bool check_finite_;
  std::unique_ptr<Transport> transport_;
  std::map<uint64_t, Running> running_;  // by log number
  int cancelled_ = 0;
  std::optional<Breakdown> breakdown_;  // the one with the lowest number
};

}  // namespace hvd

#endif  // HVD_CORE_EXECUTOR_H_
