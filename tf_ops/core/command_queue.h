// SPDX-License-Identifier: Apache-2.0
// CommandQueue: takes commands from the framework's threads to our thread.
#ifndef HVD_CORE_COMMAND_QUEUE_H_
#define HVD_CORE_COMMAND_QUEUE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "core/control/set_change.h"
#include "core/doorbell.h"
#include "core/request.h"
#include "core/status.h"

namespace hvd {

class TimelineFile;

// Commands of framework threads to the background thread, in their order.
// `serial` is that of a process set.
struct EnqueueCommand {
  int serial;
  EntryPtr entry;
};
struct JoinCommand {
  int serial;
  JoinCallPtr call;
};
struct CancelCommand {
  int serial;
  uint64_t ticket;
  Status why;
};
struct AbortStepCommand {
  int serial;
  Key key;
  int64_t step;
  Status why;
};
struct EndScopeCommand {
  int serial;
  std::string name_prefix;
  std::string text;
};
// A call that adds or removes a process set. `done` is called once, with the id
// of the set.
struct SetCall {
  SetRequest request;
  std::function<void(const Result<int>&)> done;
  bool is_asked = false;  // the leader hears of it, or has heard
};
struct ChangeSetsCommand {
  std::shared_ptr<SetCall> call;
};
// This rank ends. `failed`: by an uncaught error. Else by shutdown, after which
// it may start again.
struct EndCommand {
  bool failed;
  std::string text;
  bool restarts = false;
};
// On rank 0. Begins a timeline in `file`, or, if that is null, ends the one
// that runs. `stopped` is called when nothing is added to its file any more.
struct TimelineCommand {
  std::shared_ptr<TimelineFile> file;
  bool mark_cycles = false;
  std::function<void()> stopped;
};
using Command = std::variant<EnqueueCommand, JoinCommand, CancelCommand,
                             AbortStepCommand, EndScopeCommand,
                             ChangeSetsCommand, EndCommand, TimelineCommand>;

class CommandQueue {
 public:
  explicit CommandQueue(std::shared_ptr<Doorbell> doorbell)
      : doorbell_(std::move(doorbell)) {}

  // Any thread. Once the queue is closed it returns an error, and leaves the
  // command as it was.
  Status Push(Command&& command);

  // Pushes all of them at once: the background thread takes all or none. On
  // success it leaves an empty vector.
  Status PushAll(std::vector<Command>* commands);

  // Like Push, but a closed queue takes it too. It is for the end of this rank,
  // and for aborted steps whose batches are still served.
  void PushAnyway(Command command);

  // Background thread. Appends the commands that have been pushed.
  void Take(std::vector<Command>* commands);

  // From now on Push fails with `why`. Take still returns what was pushed
  // before.
  void Close(Status why);

 private:
  const std::shared_ptr<Doorbell> doorbell_;
  std::mutex mutex_;
  std::vector<Command> commands_;
  Status closed_;
};

}  // namespace hvd

#endif  // HVD_CORE_COMMAND_QUEUE_H_
