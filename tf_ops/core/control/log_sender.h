// SPDX-License-Identifier: Apache-2.0
// LogSender: sends each member of a set the log records that concern it.
#ifndef HVD_CORE_CONTROL_LOG_SENDER_H_
#define HVD_CORE_CONTROL_LOG_SENDER_H_

#include <cstdint>
#include <vector>

#include "core/control/message.h"

namespace hvd {

// Batches, evictions and tunings concern every member. A failure concerns the
// ranks that it names. So a failure of one rank costs one message, not one for
// each rank. The next record that a member gets says how many it has skipped.
// Members that get the same message share its bytes.
//
// Owner: the leader of a set. Background thread only. Ranks are ranks of the
// set.
class LogSender {
 public:
  LogSender(int set_id, int size);

  // The next records of the log.
  void Send(const std::vector<LogRecord>& records,
            std::vector<OutgoingMessage>* outgoing);

  // Tells every member the length of the log, with its skipped records.
  void CatchUp(std::vector<OutgoingMessage>* outgoing);

 private:
  const int set_id_;
  uint64_t log_number_ = 0;     // of the last record sent
  std::vector<uint64_t> told_;  // by rank: the last record that it was told of
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_LOG_SENDER_H_
