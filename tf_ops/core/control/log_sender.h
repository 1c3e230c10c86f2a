// SPDX-License-Identifier: Apache-2.0
// LogSender: sends others the log records that concern them.
#ifndef HVD_CORE_CONTROL_LOG_SENDER_H_
#define HVD_CORE_CONTROL_LOG_SENDER_H_

#include <cstdint>
#include <vector>

#include "core/control/host_tree.h"
#include "core/control/message.h"

namespace hvd {

// Batches, evictions and tunings concern every member. A failure concerns the
// ranks that it names. So a failure of one rank costs one message, not one for
// each rank. The next record that a member gets says how many it has skipped.
// Members that get the same message share its bytes. A gatherer gets what
// concerns any rank of its host.
//
// Owner: the leader of a set, or a gatherer. Background thread only. Ranks are
// ranks of the set.
class LogSender {
 public:
  LogSender(int serial, int size, std::vector<LogReceiver> receivers);

  // The next records of the log. A gatherer has got Skipped for those that do
  // not concern its host.
  void Send(const std::vector<LogRecord>& records,
            std::vector<OutgoingMessage>* outgoing);

  // Tells every receiver the length of the log, with its skipped records.
  void CatchUp(std::vector<OutgoingMessage>* outgoing);

 private:
  const int serial_;
  const int size_;
  const std::vector<LogReceiver> receivers_;
  uint64_t log_number_ = 0;  // of the last record sent
  // By receiver: the last record that it was told of.
  std::vector<uint64_t> told_;
};

}  // namespace hvd

#endif  // HVD_CORE_CONTROL_LOG_SENDER_H_
