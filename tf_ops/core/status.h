// SPDX-License-Identifier: Apache-2.0
// Status: what functions that can fail return. Result: that, or a value.
//
// The core throws std::bad_alloc only. adapter/tf_bridge.cc makes a TfStatus of
// a Status. hvd_tf/_internal/native.py makes a Python exception of it.
#ifndef HVD_CORE_STATUS_H_
#define HVD_CORE_STATUS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hvd {

// Values are fixed: they travel between ranks and through the C API.
enum class StatusCode : uint8_t {
  kOk = 0,
  // A bad call by this rank alone, or something that is not supported.
  kInvalidArgument = 1,
  // Ranks disagree about a tensor, or hvd is not initialised.
  kFailedPrecondition = 2,
  // A peer left, failed or aborted the step; or hvd was shut down.
  kPeerLost = 3,
  // The step that the entry belonged to was aborted on this rank.
  kCancelled = 4,
  // Out of memory for an output or a staging buffer.
  kResourceExhausted = 5,
  // A bug of ours, or bytes from a peer that do not parse.
  kInternal = 6,
};
inline constexpr uint8_t kStatusCodeCount = 7;

// The cause of a failure that this rank did not bring about alone. Programs
// decide by it. Messages are for people, and their words may change. Values are
// fixed: they travel between ranks and into Python. There 0 stands for no
// cause.
enum class CauseKind : uint8_t {
  // The rank's TensorFlow step was aborted.
  kStepAborted = 1,
  // The rank has left the training loop or iteration of the tensor.
  kScopeEnded = 2,
  // The rank has met an error of its own and announced it.
  kRankFailed = 3,
  // The rank was shut down in an orderly way. It need not come back.
  kRankLeft = 4,
  // The rank is silent, or keeps others waiting. It was given up.
  kRankGivenUp = 5,
  // The rank could not take part in a batch on the wire. It was shut down, or
  // had lost a peer itself.
  kRankDroppedOut = 6,
  // The rank found its call invalid, or had no memory for it.
  kCallFailed = 7,
  // The ranks' calls differ. No single rank is at fault.
  kRanksDiffer = 8,
  // The rank's input has a NaN or an infinity, and it looks for them.
  kNotFinite = 9,
  // The rank was shut down to start again, and waits there for all others.
  kRankRestarts = 10,
};
inline constexpr uint8_t kCauseKindCount = 10;

struct Cause {
  CauseKind kind = CauseKind::kRankFailed;
  int rank = -1;       // of the job; -1: no single rank
  std::string tensor;  // the failed tensor; empty: none
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}
  Status(StatusCode code, std::string message, Cause cause)
      : code_(code),
        message_(std::move(message)),
        cause_(std::make_shared<const Cause>(std::move(cause))) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // Null: there is none, or it is not known.
  const Cause* cause() const { return cause_.get(); }

  // The same failure with another message.
  Status Reworded(std::string message) const {
    Status status(*this);
    status.message_ = std::move(message);
    return status;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::shared_ptr<const Cause> cause_;  // copies share it; it never changes
};

[[nodiscard]] inline Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
[[nodiscard]] inline Status FailedPrecondition(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}
[[nodiscard]] inline Status PeerLost(std::string message) {
  return Status(StatusCode::kPeerLost, std::move(message));
}
[[nodiscard]] inline Status PeerLost(std::string message, Cause cause) {
  return Status(StatusCode::kPeerLost, std::move(message), std::move(cause));
}
[[nodiscard]] inline Status Cancelled(std::string message) {
  return Status(StatusCode::kCancelled, std::move(message));
}
[[nodiscard]] inline Status ResourceExhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
[[nodiscard]] inline Status Internal(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

// One reason for many failures.
using SharedStatus = std::shared_ptr<const Status>;

inline SharedStatus Share(Status status) {
  return std::make_shared<const Status>(std::move(status));
}

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace hvd

#define HVD_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::hvd::Status hvd_status_ = (expression);  \
    if (!hvd_status_.ok()) return hvd_status_; \
  } while (false)

#endif  // HVD_CORE_STATUS_H_
