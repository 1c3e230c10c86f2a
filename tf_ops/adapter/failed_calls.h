// SPDX-License-Identifier: Apache-2.0
// FailedCalls: the causes of recent failures, for code that gets an error
// without its cause.
//
// TensorFlow's datasets and Python operations pass on the text of an error, and
// nothing else.
#ifndef HVD_ADAPTER_FAILED_CALLS_H_
#define HVD_ADAPTER_FAILED_CALLS_H_

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/status.h"

namespace hvd {

// There is one for the process. Any thread.
class FailedCalls {
 public:
  // A call under that name has ended. This costs nothing while no call has
  // failed.
  void Ended(const std::string& name, const Status& status);

  // The cause of the last call under the name, or under that with a number of
  // MatchedNames. Nothing if none failed, or if the cause is not known.
  std::optional<Cause> CauseOf(const std::string& name) const;

  // The same for the last call of all.
  std::optional<Cause> CauseOfLast() const;

 private:
  // There may be many names. When so many have failed, all but the last are
  // forgotten.
  static constexpr size_t kRemembered = 4096;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<std::string, Cause> by_name_;
  std::optional<Cause> last_;
};

}  // namespace hvd

#endif  // HVD_ADAPTER_FAILED_CALLS_H_
