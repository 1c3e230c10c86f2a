// SPDX-License-Identifier: Apache-2.0
// Status: how every function of the core reports success or failure, by value.
//
// No exceptions cross the core. A Status becomes a tf::Status in one file
// (adapter/tf_bridge.cc) and a Python exception in one file (native.py).
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

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
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
