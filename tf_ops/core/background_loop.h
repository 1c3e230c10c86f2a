// SPDX-License-Identifier: Apache-2.0
// BackgroundLoop: what the background thread does, pass by pass.
#ifndef HVD_CORE_BACKGROUND_LOOP_H_
#define HVD_CORE_BACKGROUND_LOOP_H_

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/autotune_report.h"
#include "core/backend.h"
#include "core/comm_stats.h"
#include "core/command_queue.h"
#include "core/control/autotuner.h"
#include "core/control/known_sets.h"
#include "core/control/message.h"
#include "core/control/negotiator.h"
#include "core/control/set_change.h"
#include "core/counting_channel.h"
#include "core/doorbell.h"
#include "core/ends.h"
#include "core/executor.h"
#include "core/gpu_watch.h"
#include "core/options.h"
#include "core/peer_end.h"
#include "core/peer_names.h"
#include "core/peer_watch.h"
#include "core/process_set.h"
#include "core/set_registry.h"
#include "core/stack_requests.h"
#include "core/timeline.h"

namespace hvd {

// Owns the negotiators and executors of the sets that this rank is in. The
// backend, the queue, the registry and the counters are not its own, and
// outlive it. Everything belongs to the thread that calls Run, unless it says
// otherwise.
class BackgroundLoop {
 public:
  using Clock = std::chrono::steady_clock;

  // `device_lanes` may be null.
  BackgroundLoop(Backend* backend, DeviceLanes* device_lanes,
                 CommandQueue* queue, SetRegistry* registry,
                 const Options& options, std::shared_ptr<StackRequests> stacks,
                 CommCounters* counters);
  ~BackgroundLoop();

  // The sets that the job starts with, the global one first. Before Run.
  Status Begin(const std::vector<ProcessSetPtr>& sets);

  // From now on an Autotuner chooses how the global set's batches travel. To be
  // called on the rank that leads it, between Begin and Run.
  void Autotune(std::unique_ptr<AutotuneReport> report);

  // Before Run: rank 0 starts a timeline with the job.
  void StartTimeline(bool mark_cycles) { timeline_.StartWithJob(mark_cycles); }

  // Counts, and notes for the timeline. Trace::on may be called by any thread.
  const Trace& trace() { return *timeline_.trace(); }

  // Returns when an EndCommand that is not a failure has been applied.
  void Run();

  // Fulfilled once a failure that an EndCommand announces has reached each
  // host. Any thread.
  std::future<void> failure_announced() { return ends_.failure_announced(); }
  // See Ends. Any thread.
  std::optional<PeerEnd> first_peer_end() const { return ends_.first_peer(); }
  int restarting_peer() const { return ends_.restarting_peer(); }

 private:
  struct Set {
    ProcessSet process_set;
    std::unique_ptr<Negotiator> negotiator;
    std::unique_ptr<Executor> executor;
    // The record of the global set's log that began it. 0: it was there before.
    uint64_t begun_at = 0;
    // A removed set stays until its log has ended and nothing of it is on the
    // wire.
    bool is_removed = false;
  };

  // One look at everything. True if anything moved.
  bool Pass();
  // background_tuning.cc: tells the leader what the autotuner has chosen.
  void Tune();
  // Closes autotune's report too. What uses the runtime may keep this object.
  void EndTuning();
  bool AdvanceSets();
  // Starts what the log has brought, in its order.
  void ExecuteReady();
  void ExecuteReady(Set* set);
  bool SendMessages();
  bool ProgressBatches();
  void FlushChannel();
  // When a set has something to do though nothing comes.
  Clock::duration UntilSetsAreDue() const;
  // Sleeps until something may have happened.
  void Wait();

  // background_commands.cc: what the framework's threads ask for. True if there
  // was anything. A command that somebody waits for keeps its entry or call
  // until that is stored or answered. Memory may run out before.
  bool TakeCommands();
  void Apply(EnqueueCommand&& command);
  void Apply(JoinCommand&& command);
  void Apply(CancelCommand command);
  void Apply(AbortStepCommand command);
  void Apply(EndScopeCommand command);
  void Apply(ChangeSetsCommand&& command);
  void Apply(EndCommand command);
  void Apply(TimelineCommand command);

  // background_messages.cc: what peers tell. True if there was anything.
  bool ReceiveMessages();
  Status Handle(int peer, Envelope envelope);
  // The member of a set that has sent a message of it.
  struct Sender {
    Set* set = nullptr;  // null: it is gone, and the message was on its way
    int rank = 0;
  };
  Result<Sender> FindSender(int peer, int serial);
  Status Handle(const Sender& sender, const Report& report);
  Status Handle(const Sender& sender, HostReport report);
  Status Handle(const Sender& sender, const LogMessage& log);

  // background_sets.cc: sets that come and go. True if anything happened.
  bool ChangeSets();
  // Not Ok: no leader of this build says that now.
  Status Apply(const LoggedChange& logged);
  // Whether this rank has answered to all that must precede the change.
  Status CheckAnswers(const SetChange& change) const;
  // Makes the set that is to be prepared, as soon as there is memory for it.
  bool PrepareSet();
  bool SweepRemovedSets();
  // Has the call that waits told to the leader, once.
  bool AskForChange();
  // Answers the call that waits, if there is one.
  void EndSetCall(const Result<int>& result);
  // Fails that call once the log can answer it no more.
  bool FailSetCallIfEnded();
  // A set with its transport. Null: the memory is in use; ask again.
  Result<std::unique_ptr<Set>> NewSet(const ProcessSet& process_set, int slot);
  Status AddSet(const ProcessSet& process_set, int slot);
  HostMap HostsOf(const ProcessSet& process_set) const;
  LaneOwner OwnerOfLane(const ProcessSet& process_set);

  // background_watch.cc: peers that do not answer, or keep others waiting.
  void Watch();
  // True: there was something to warn of.
  bool WatchPeers();
  bool WatchSets();
  bool WatchGpus();
  void EndWithGpu();
  // Fails everything on all ranks because of a rank that cannot say so itself.
  void GiveUp(const PeerWatch::Lost& lost);
  std::vector<std::string> WaitingNames() const;

  // background_ends.cc: Pass. If it finds no memory, nobody knows what it was
  // doing, so this rank ends.
  bool PassOrBreak();
  void RunOutOfMemory();
  // Fails what ExecuteReady would start.
  static void FailReady(Set* set, const Status& why);
  Status HandleEnds(int peer, PeerEnds ends);
  // What the end of a peer means to this rank.
  void EndPeer(const PeerEndMessage& end);
  // What the end of a peer means to a set.
  void EndSet(Set* set, const PeerEndMessage& end, const Status& why);
  // A member has ended, and the rest of its set's log has not come in time.
  void AnswerOverdue();
  // Tells the peers and fails what is pending here. `lost_track`: nobody knows
  // what this rank takes part in.
  void EndSelf(const EndCommand& how, bool lost_track = false);
  // Ends this rank because of something that must not happen.
  void Break(const std::string& text, bool lost_track = false);
  // After EndSelf: what is on the wire may finish, within a limit.
  void Drain();
  // Ends what has not.
  void FailRest();

  // Null: there is none, or none any more.
  Set* FindSet(int serial);
  bool Busy() const;

  Backend* const backend_;
  DeviceLanes* const device_lanes_;
  CommandQueue* const queue_;
  SetRegistry* const registry_;
  const std::shared_ptr<Doorbell> doorbell_;
  CountingChannel channel_;
  Timeline timeline_;
  std::unique_ptr<Autotuner> autotuner_;  // null: nothing changes any more
  const Options options_;
  const bool rings_;                      // arrivals ring it
  const std::chrono::microseconds spin_;  // before it sleeps
  const PeerNames names_;

  std::vector<Set> sets_;                  // the global one first
  KnownSets known_sets_;                   // of the job
  std::optional<LoggedChange> preparing_;  // waits for memory
  std::shared_ptr<SetCall> set_call_;      // null: none waits
  std::vector<Command> commands_;
  Clock::time_point now_;
  // Without the time in which this process was stopped. It has not read what
  // peers sent in that time, so the time must not count against them.
  Clock::time_point awake_ = Clock::now();
  Clock::time_point last_moved_;
  Clock::time_point last_watch_;
  Ends ends_;
  PeerWatch peer_watch_;
  GpuWatch gpu_watch_;
  // What is on the wire ends then, because this rank's GPU does not end it.
  std::optional<Clock::time_point> gpu_deadline_;
  std::string gpu_failure_;
  bool flushing_ = false;  // messages are on their way
  bool stopping_ = false;
  bool has_told_end_ = false;  // EndSelf has come to its end
};

}  // namespace hvd

#endif  // HVD_CORE_BACKGROUND_LOOP_H_
