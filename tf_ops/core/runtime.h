// SPDX-License-Identifier: Apache-2.0
// Runtime: the door for the framework's threads, and the background thread.
#ifndef HVD_CORE_RUNTIME_H_
#define HVD_CORE_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/backend.h"
#include "core/options.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

class AutotuneReport;
class BackgroundLoop;
class StackRequests;
class TensorQueue;

// A group of ranks that run collectives among themselves. Set 0 is all ranks.
struct ProcessSet {
  std::vector<int> ranks;  // of the job, ascending
  int rank = -1;           // this rank's place among them; -1: not a member
};

// What a peer said when it left or failed.
struct PeerEnd {
  int rank = 0;
  bool failed = false;   // false: it shut down
  std::string text;      // first line of its error, or why it left
  bool gave_up = false;  // it has said nothing: others have given it up
};

// Owner: whoever initialised hvd. All methods may be called from any thread
// after Start, unless they say otherwise.
class Runtime {
 public:
  Runtime(std::unique_ptr<Backend> backend, const Options& options);
  // Stops first if need be.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Starts the background thread. `process_sets` hold ranks of the job and get
  // the ids 1, 2, ...; they must be the same on every rank.
  Status Start(const std::vector<std::vector<int>>& process_sets);

  // Tells the peers that this rank leaves, fails what is pending here and
  // ends the thread. Does not wait for peers; does not end MPI.
  void Stop();

  const Topology& topology() const { return backend_->topology(); }
  int process_set_count() const;
  // Null for an unknown id.
  const ProcessSet* process_set(int id) const;

  uint64_t NewTicket() { return next_ticket_.fetch_add(1) + 1; }

  // Hands the entry to the background thread. A request with an error (this
  // rank found the call invalid) travels too, so that the peers' entry fails.
  // `done` may be called before Enqueue returns when hvd is stopped, the set
  // is unknown or this rank is not in it.
  void Enqueue(int process_set_id, EntryPtr entry);

  // The step of this entry was aborted here with `why`: `done` is called with
  // it within milliseconds, and the peers' entries fail naming this rank. What
  // is on the wire has 100 ms to complete before that; and where it travels
  // together with entries of other steps it is part of what these wait for.
  void Cancel(int process_set_id, uint64_t ticket, Status why);

  // The same for an entry that could not be enqueued any more because its step
  // is already aborted.
  void AbortStep(int process_set_id, const Key& key, int64_t step, Status why);

  // This rank ended a training loop: until it enqueues a name with this prefix
  // again, peers that wait for one from it fail with `text`. An empty text
  // takes that back.
  void EndScope(int process_set_id, const std::string& name_prefix,
                const std::string& text);

  // This rank failed (an uncaught exception): the peers' pending and later
  // operations fail with this rank, its host and `first_line`. Returns when
  // the messages are on their way, or after a second.
  void AnnounceFailure(const std::string& first_line);

  // The first peer that left or failed, as far as known here.
  std::optional<PeerEnd> first_peer_end() const;

  // Served by a thread that can run Python. Outlives the runtime; closed when
  // that is stopped.
  std::shared_ptr<StackRequests> stack_requests() const { return stacks_; }

  // Ends the whole job.
  void Abort(int exit_code) { backend_->Abort(exit_code); }

 private:
  // Opens what autotune writes to, on the rank that leads; Ok with null on the
  // others. The same status on all.
  Result<std::unique_ptr<AutotuneReport>> OpenAutotuneReport();

  std::unique_ptr<Backend> backend_;
  Options options_;
  std::vector<ProcessSet> sets_;
  std::atomic<uint64_t> next_ticket_{0};
  const std::shared_ptr<StackRequests> stacks_;
  std::unique_ptr<TensorQueue> queue_;
  std::unique_ptr<BackgroundLoop> loop_;
  std::thread thread_;
  std::mutex stop_mutex_;
  bool announced_ = false;
};

}  // namespace hvd

#endif  // HVD_CORE_RUNTIME_H_
