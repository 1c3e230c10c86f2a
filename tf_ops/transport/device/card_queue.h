// SPDX-License-Identifier: Apache-2.0
// CardQueue: what the lanes of one card share, whose communicators use it one
// after another.
#ifndef HVD_TRANSPORT_DEVICE_CARD_QUEUE_H_
#define HVD_TRANSPORT_DEVICE_CARD_QUEUE_H_

#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "transport/device/device.h"
#include "transport/device/launch_order.h"

namespace hvd {

// One thread uses it.
class CardQueue {
 public:
  explicit CardQueue(std::shared_ptr<Device> device)
      : device_(std::move(device)) {}

  // The stream of all communicators, which `ready`'s card must have. It is made
  // at the first call. See Segment::ready.
  Status OpenStream(const std::shared_ptr<const void>& ready) {
    if (stream_ != nullptr) return stream_->CheckCard(ready);
    auto made = device_->NewStream(ready);
    if (made.ok()) stream_ = std::move(made.value());
    return made.status();
  }
  DeviceStream* stream() const { return stream_.get(); }

  LaunchOrder& order() { return order_; }

  // Whether a set's reason not to use the card in this way is news.
  bool IsNews(const std::string& reason) {
    if (reason == last_reason_) return false;
    last_reason_ = reason;
    return true;
  }

 private:
  const std::shared_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
  LaunchOrder order_;
  std::string last_reason_;
};

}  // namespace hvd

#endif  // HVD_TRANSPORT_DEVICE_CARD_QUEUE_H_
