// SPDX-License-Identifier: Apache-2.0
// TestCard: a card that is made up, CUDA's driver on it, and a framework's
// stream.
#ifndef HVD_TESTS_CORE_TEST_CARD_H_
#define HVD_TESTS_CORE_TEST_CARD_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "card/fake_card.h"
#include "card/fake_cuda.h"
#include "transport/cuda/cuda_device.h"
#include "transport/cuda/cuda_driver.h"

namespace hvd {

inline const CudaDriver* FakeDriver() {
  static const CudaDriver driver = CudaDriver::Find(FindFakeCuda).value();
  return &driver;
}

// Nothing is done before Step.
class TestCard {
 public:
  using Ready = std::shared_ptr<const void>;

  FakeCard& card() { return *card_; }
  std::shared_ptr<Device> device() { return device_; }
  void Step() { card_->Step(); }

  // It comes back when the last pointer goes, before the card does.
  std::shared_ptr<void> Allocate(size_t bytes) {
    return {card_->Allocate(bytes),
            [card = card_.get()](void* memory) { card->Free(memory); }};
  }

  // The framework's stream does this when it comes to it. It takes long enough
  // for streams that do not wait for it to go on.
  void Compute(std::function<void()> work) {
    card_->Queue(stream_, [work = std::move(work), asked = 0]() mutable {
      if (++asked < 2) return false;
      work();
      return true;
    });
  }
  // The framework's stream stops here until `is_open`.
  void ComputeOnce(std::shared_ptr<const bool> is_open) {
    card_->Queue(stream_, [is_open = std::move(is_open)] { return *is_open; });
  }
  // What the framework's stream has come to.
  Ready Mark() { return MarkStream(FakeDriver(), stream_).value(); }
  FakeCard::Stream* framework_stream() { return stream_; }

 private:
  const std::unique_ptr<FakeCard> card_ = std::make_unique<FakeCard>();
  FakeCard::Stream* const stream_ = card_->NewStream();
  const std::shared_ptr<Device> device_ = std::make_shared<CudaDevice>();
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_TEST_CARD_H_
