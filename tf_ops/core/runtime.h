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
#include "core/comm_stats.h"
#include "core/control/set_change.h"
#include "core/lanes.h"
#include "core/options.h"
#include "core/peer_end.h"
#include "core/process_set.h"
#include "core/request.h"
#include "core/set_registry.h"
#include "core/status.h"

namespace hvd {

class AutotuneReport;
class BackgroundLoop;
class StackRequests;
class CommandQueue;
class TimelineFile;

// Owner: whoever has initialised hvd. After Start any thread may call all
// methods, unless they say otherwise.
class Runtime {
 public:
  // `device_lanes` may be null: no memory of a GPU is served.
  Runtime(std::unique_ptr<Backend> backend, const Options& options,
          std::unique_ptr<DeviceLanes> device_lanes = nullptr);
  // Calls Stop, unless that was done.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Starts the background thread. All ranks of the job call it, and it fails on
  // all of them or on none. `process_sets` have ranks of the job. Their ids are
  // 1, 2, ... They must be the same on every rank.
  Status Start(const std::vector<std::vector<int>>& process_sets);

  // Tells the peers that this rank leaves, fails what is pending here, and ends
  // the thread. It does not wait for peers, and it does not end MPI.
  // `restarts`: all ranks are going to start again. The peers are told that
  // too.
  void Stop(bool restarts = false);

  const Topology& topology() const { return backend_->topology(); }
  const Options& options() const { return options_; }
  // By id. They are as they were at some moment during the call.
  std::shared_ptr<const SetRegistry::Sets> process_sets() const {
    return registry_.all();
  }
  // Null for an unknown id.
  ProcessSetPtr process_set(int id) const { return registry_.Find(id); }
  // Around a fork of this process. A child may only ask for facts as the above.
  void BeforeFork() { registry_.BeforeFork(); }
  void AfterFork() { registry_.AfterFork(); }

  // Adds or removes a process set. Every rank of the job makes the same calls
  // in the same order, members or not, while collectives go on. A call blocks
  // until all have made it. It has the same outcome on all ranks, unless a rank
  // ends meanwhile. It fails when a peer ends, or when this rank does.
  //
  // The id of a new set is the lowest that no set has. If the ranks differ, or
  // one has `error`, or a member has no memory for the set, all fail. What
  // waits in a removed set and is not agreed fails. What is agreed completes.
  Result<int> AddProcessSet(std::vector<int> ranks,
                            Status error = Status::Ok());
  Status RemoveProcessSet(int id);

  uint64_t NewTicket() { return next_ticket_.fetch_add(1) + 1; }

  // Hands the entry to the background thread. A request with an error travels
  // too, so that the peers' entries fail. `done` is called before Enqueue
  // returns if hvd is stopped, the set is unknown or this rank is not in it.
  void Enqueue(int process_set_id, EntryPtr entry);
  // The same in a set that process_set has returned. It may have been removed
  // since. Then the entry fails, even if its id has been given to another set.
  void Enqueue(const ProcessSet& set, EntryPtr entry);
  // The same for several, which the background thread takes at once. So what
  // can travel together does.
  void Enqueue(const ProcessSet& set, std::vector<EntryPtr> entries);

  // This rank has no more tensors for the set. Until all its ranks have joined,
  // the others' calls go on without this rank's. This rank is a member. `done`
  // is called before Join returns if hvd is stopped. It may be called before
  // this rank's part in the last batches of the others is done.
  void Join(const ProcessSet& set, JoinCallPtr call);

  // The step of this entry was aborted on this rank with `why`. `done` is
  // called with that status within milliseconds. The peers' entries fail with
  // `why` too if it has a cause, because they may meet the same failure. Else
  // they fail with an error that names this rank.
  //
  // If the entry is on the wire, it has 100 ms to complete before that. Then it
  // gets the words of `why` with kCancelled. If entries of other steps travel
  // in its batch, it stays in the batch until that ends.
  void Cancel(int set_serial, uint64_t ticket, Status why);

  // The same for an entry that was not enqueued, because its step was already
  // aborted.
  void AbortStep(const ProcessSet& set, const Key& key, int64_t step,
                 Status why);

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
  // A peer that has stopped to start again, and waits for all others. -1: none.
  int restarting_peer() const;

  // Begins a timeline of all ranks in the file `path` on rank 0, after the end
  // of the one that runs. On the other ranks it does nothing. Not Ok: the file
  // cannot be written.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  // On rank 0: ends it. Returns when the file is complete; ranks that do not
  // answer are waited for at most a second. Without a timeline it does nothing.
  void StopTimeline();

  // The counters change while they are read.
  const CommCounters& counters() const { return counters_; }

  // A thread that can run Python serves the requests. They outlive the runtime.
  // Stop closes them.
  std::shared_ptr<StackRequests> stack_requests() const { return stacks_; }

  // Ends the whole job.
  void Abort(int exit_code) { backend_->Abort(exit_code); }

 private:
  Status CheckMember(const ProcessSet& set, const Entry& entry) const;

  // What rank 0 has found to do with files. It crosses to the other ranks.
  struct Files {
    std::unique_ptr<AutotuneReport> autotune_report;
    bool has_timeline = false;
    bool marks_cycles = false;
  };
  // Opens autotune's report and the timeline on rank 0, if they are wanted
  // there. The status and the flags are the same on all ranks.
  Result<Files> OpenFiles();
  // All that Start does on this rank alone. The thread waits for start_mutex_.
  Status StartThread(const std::vector<ProcessSetPtr>& sets, Files* files);
  // The error of the first rank that has one, on all ranks.
  Status AgreeOnStart(const Status& own);
  Status OpenTimeline(const std::string& name, const std::string& path);
  Result<int> ChangeSets(SetRequest request);

  std::unique_ptr<Backend> backend_;
  const std::unique_ptr<DeviceLanes> device_lanes_;
  Options options_;
  SetRegistry registry_;
  CommCounters counters_;
  std::mutex change_mutex_;  // held through a change of the sets
  std::atomic<uint64_t> next_ticket_{0};
  const std::shared_ptr<StackRequests> stacks_;
  std::unique_ptr<CommandQueue> queue_;
  std::unique_ptr<BackgroundLoop> loop_;
  std::mutex start_mutex_;  // held by Start until starts_ is decided
  bool starts_ = false;
  std::thread thread_;
  // Held while a timeline is started or stopped, which takes long.
  std::mutex timeline_mutex_;
  std::shared_ptr<TimelineFile> timeline_file_;  // on rank 0, while it runs
  std::mutex stop_mutex_;
  bool announced_ = false;
};

}  // namespace hvd

#endif  // HVD_CORE_RUNTIME_H_
