// SPDX-License-Identifier: Apache-2.0
// ForwardingBackend: a Backend over another one, for tests that change a part.
#ifndef HVD_TESTS_CORE_FORWARDING_BACKEND_H_
#define HVD_TESTS_CORE_FORWARDING_BACKEND_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"

namespace hvd {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> base)
      : base_(std::move(base)) {}

  const Topology& topology() const override { return base_->topology(); }
  Channel& channel() override { return base_->channel(); }
  Result<std::vector<std::string>> Exchange(const std::string& mine) override {
    return base_->Exchange(mine);
  }
  Result<std::unique_ptr<Transport>> NewTransport(
      int slot, const ProcessSet& process_set) override {
    return base_->NewTransport(slot, process_set);
  }
  std::shared_ptr<Doorbell> doorbell() override { return base_->doorbell(); }
  bool arrivals_ring() const override { return base_->arrivals_ring(); }
  void Abort(int exit_code) override { base_->Abort(exit_code); }

 private:
  const std::unique_ptr<Backend> base_;
};

}  // namespace hvd

#endif  // HVD_TESTS_CORE_FORWARDING_BACKEND_H_
