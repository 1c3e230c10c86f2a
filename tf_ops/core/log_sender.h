// SPDX-License-Identifier: Apache-2.0
// LogSender: tells each member of a set what concerns it of the leader's log.
#ifndef HVD_CORE_LOG_SENDER_H_
#define HVD_CORE_LOG_SENDER_H_

#include <cstdint>
#include <vector>

#include "core/message.h"

namespace hvd {

// Batches, evictions and tunings concern every member, failures the ranks that
// they name. Members that are told the same share its bytes. A member hears of
// what does not concern it as a number of skipped records, with the next record
// that does: a failure of one rank costs one message, not one a rank.
//
// Belongs to the leader of a set. Background thread only. Ranks are the set's.
class LogSender {
 public:
  LogSender(int set_id, int size);

  // The next records of the log.
  void Send(const std::vector<LogRecord>& records,
            std::vector<OutgoingMessage>* outgoing);

  // Tells every member how long the log is, skipped records included.
  void CatchUp(std::vector<OutgoingMessage>* outgoing);

 private:
  const int set_id_;
  uint64_t log_number_ = 0;     // of the last record sent
  std::vector<uint64_t> told_;  // by rank: the last record that it was told of
};

}  // namespace hvd

#endif  // HVD_CORE_LOG_SENDER_H_
