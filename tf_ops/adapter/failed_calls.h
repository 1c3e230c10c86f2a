// SPDX-License-Identifier: Apache-2.0
// FailedCalls: the causes of recent failures, for whoever gets an error from
// which TensorFlow has taken the cause away.
//
// Its datasets and Python operations pass an error on by its text alone.
#ifndef HVD_ADAPTER_FAILED_CALLS_H_
#define HVD_ADAPTER_FAILED_CALLS_H_

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/status.h"

namespace hvd {

// One for the process. Any thread.
class FailedCalls {
 public:
  // A call under that name has ended. Costs nothing while none has failed.
  void Ended(const std::string& name, const Status& status);

  // Why the last call under the name failed; nothing when it did not, or when
  // no cause is known.
  std::optional<Cause> CauseOf(const std::string& name) const;

  // The same for the last call of all.
  std::optional<Cause> CauseOfLast() const;

 private:
  // Names may be many: when so many have failed, all but the last are
  // forgotten.
  static constexpr size_t kRemembered = 4096;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<std::string, Cause> by_name_;
  std::optional<Cause> last_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_FAILED_CALLS_H_
