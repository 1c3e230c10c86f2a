// SPDX-License-Identifier: Apache-2.0
// Runtime: what the framework's threads call, and the background thread.
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
#include "core/peer_end.h"
#include "core/process_set.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

class AutotuneReport;
class BackgroundLoop;
class StackRequests;
class TensorQueue;

// Owner: whoever has initialised hvd. After Start any thread may call all
// methods, unless they say otherwise.
class Runtime {
 public:
  Runtime(std::unique_ptr<Backend> backend, const Options& options);
  // Calls Stop, unless that was done.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Starts the background thread. `process_sets` have ranks of the job. Their
  // ids are 1, 2, ... They must be the same on every rank.
  Status Start(const std::vector<std::vector<int>>& process_sets);

  // Tells the peers that this rank leaves, fails what is pending here, and ends
  // the thread. It does not wait for peers, and it does not end MPI.
  void Stop();

  const Topology& topology() const { return backend_->topology(); }
  const Options& options() const { return options_; }
  int process_set_count() const;
  // Null for an unknown id.
  const ProcessSet* process_set(int id) const;

  uint64_t NewTicket() { return next_ticket_.fetch_add(1) + 1; }

  // Hands the entry to the background thread. A request with an error travels
  // too, so that the peers' entries fail. `done` is called before Enqueue
  // returns if hvd is stopped, the set is unknown or this rank is not in it.
  void Enqueue(int process_set_id, EntryPtr entry);

  // This rank has no more tensors for the set. Until all its ranks have joined,
  // the others' calls go on without this rank's. `done` is called before Join
  // returns if hvd is stopped, the set is unknown or this rank is not in it.
  void Join(int process_set_id, JoinCallPtr call);

  // The step of this entry was aborted on this rank with `why`. `done` is
  // called with that status within milliseconds. The peers' entries fail with
  // an error that names this rank.
  //
  // If the entry is on the wire, it has 100 ms to complete before that. If
  // entries of other steps travel in its batch, it stays in the batch until
  // that ends.
  void Cancel(int process_set_id, uint64_t ticket, Status why);

  // The same for an entry that was not enqueued, because its step was already
  // aborted.
  void AbortStep(int process_set_id, const Key& key, int64_t step, Status why);

  // This rank has ended a training loop. Peers that wait for one of its names
  // with this prefix fail with `text`. That holds until this rank enqueues such
  // a name again, or calls this with an empty text.
  void EndScope(int process_set_id, const std::string& name_prefix,
                const std::string& text);

  // This rank has failed, by an uncaught exception. The peers' pending and
  // later operations fail with an error that has this rank, its host and
  // `first_line`. Returns when the messages are on their way, or after a
  // second.
  void AnnounceFailure(const std::string& first_line);

  // The first peer that has left or failed, as far as this rank knows.
  std::optional<PeerEnd> first_peer_end() const;

  // A thread that can run Python serves them. They outlive the runtime. Stop
  // closes them.
  std::shared_ptr<StackRequests> stack_requests() const { return stacks_; }

  // Ends the whole job.
  void Abort(int exit_code) { backend_->Abort(exit_code); }

 private:
  // Why this rank cannot call anything on the set; `name` is for the text.
  Status CheckMember(int process_set_id, const std::string& name) const;
  // Opens autotune's report on the rank that leads. On the others it returns
  // null. The status is the same on all ranks.
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
