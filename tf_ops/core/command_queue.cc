// SPDX-License-Identifier: Apache-2.0
// Hands commands from the framework's threads to the background thread.
#include "core/command_queue.h"

#include <iterator>
#include <utility>

namespace hvd {

Status CommandQueue::Push(Command&& command) {
  bool was_empty;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    was_empty = commands_.empty();
    commands_.push_back(std::move(command));
  }
  // If the queue was not empty, the bell was rung already. The thread takes all
  // commands at once.
  if (was_empty) doorbell_->Ring();
  return Status::Ok();
}

Status CommandQueue::PushAll(std::vector<Command>* commands) {
  bool was_empty;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    was_empty = commands_.empty();
    std::move(commands->begin(), commands->end(),
              std::back_inserter(commands_));
  }
  commands->clear();
  if (was_empty) doorbell_->Ring();
  return Status::Ok();
}

void CommandQueue::PushAnyway(Command command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  doorbell_->Ring();
}

void CommandQueue::Take(std::vector<Command>* commands) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (commands->empty()) {
    commands->swap(commands_);
    return;
  }
  std::move(commands_.begin(), commands_.end(), std::back_inserter(*commands));
  commands_.clear();
}

void CommandQueue::Close(Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.ok()) closed_ = std::move(why);
}

}  // namespace hvd
